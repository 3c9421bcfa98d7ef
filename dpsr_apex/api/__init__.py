"""The public Python API: `dpsr_apex.__init__` exports its names. Nothing below this layer imports it."""
