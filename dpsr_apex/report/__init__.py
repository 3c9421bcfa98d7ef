"""One page of curves and tables from run directories. It reads what runs left behind, and never changes it."""
