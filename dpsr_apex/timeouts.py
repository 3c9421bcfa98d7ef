"""Every time constant of a run, in seconds, and the budgets that they must add up to.

Times that users may want to change are settings instead (`system.lease`, `system.recycle_deadline`).
"""

from __future__ import annotations

# Membership: how a process joins a run, stays a member, and finds the head again.
HEARTBEAT = 1.0  # between two heartbeats of a member, and between two attempts to join
MEMBER_SILENCE = 3.0  # without a message, a member is reported as silent, and a restarted process may take its name
LEASE_CHECK_GAP = 1.0  # between two checks of the leases; a longer gap means that the replay itself was suspended
HEAD_SILENCE = 2.0  # without a message, before a client looks up the head again
HEAD_ANSWER = 20.0  # for the first answer of a head, which may still be starting
HEAD_LOST = 600.0  # without a message from the head, before a process gives up
QUESTION_REPEAT = 1.0  # before a question that a head has not answered is repeated
CONNECT_POLL = 0.02  # between two attempts to send over a socket that has not connected yet
SURVEY_GAP = 2.0  # between two surveys of the replay, which delay the run
CONTROL_ANSWER = 5.0  # for the answer to `dpsr-apex rate` or `scale`
HEAD_POLL = 0.2  # between two lookups of a head that is not registered yet
WAIT_MESSAGE = 2.0  # of waiting for a head, before that is logged
STATE_TRIAL = 5.0  # to re-enter one state in a child process; less than a lease

# Loops: how long a process waits for messages before it checks its clock.
REPLAY_TICK = 0.1
JOURNAL_GROUP = 0.005  # after a flush of the journal to the disk, before the next one, which flushes everything since
JOURNAL_TICK = 1.0  # between two checks of a journal that could not be written, or whose last record is unconfirmed
ACTOR_POLL = 0.05
LEARNER_POLL = 0.1
EVALUATOR_POLL = 0.2
SUPERVISOR_POLL = 0.25
START_POLL = 0.02  # of the supervisor, while the replay starts
EXIT_POLL = 0.05  # of the supervisor, while processes end
WATCH_POLL = 0.25
EXPERIMENT_POLL = 0.5
LOCK_POLL = 0.1
SPACE_POLL = 0.5  # of a replay process that cannot start because the disk is full

# Traffic.
CHUNK_FLUSH = 1.0  # after which an actor sends its transitions even if they do not fill a chunk
CHUNK_PACE = 0.01  # times the number of actors, if that is shorter: the replay gets about 100 such chunks a second
THROTTLE_RELEASE = 1.0  # without a chunk that had to wait for updates, before actors may have more in flight again
WEIGHTS_ANSWER = 10.0  # for requested weights, before they are requested again over a new socket; doubled each time
WEIGHTS_MESSAGE = 10.0  # without any weights, before an actor logs what it waits for; doubled each time
LEARNER_REPORT = 1.0  # between two reports of the learner

# Sockets.
SOCKET_LINGER = 1.0  # that closing waits for unsent messages
SOCKET_HEARTBEAT = 5.0  # between ZeroMQ's own heartbeats
SOCKET_SILENCE = 60.0  # without one, before a peer's queue is dropped; long enough for weights over a slow connection
SOCKET_HANDSHAKE = 2.0  # for a client of a server to complete its handshake
CLIENT_HANDSHAKE = 10.0  # for a server to complete its part
CONNECTIONS_CHECK = 0.1  # between two checks of how much the clients of a server have sent without being read
LONGEST_POLL = 3_600.0  # maximum duration of one wait for sockets

# Restarts of processes.
STABLE_AFTER = 60.0  # of running, after which the restart budget of a process is reset
FIRST_BACKOFF = 1.0  # before the first restart; doubled each time
LONGEST_BACKOFF = 30.0
NODE_LOST_BACKOFF = 3.0  # before a restart after a node was lost, until the whole engine has noticed it
FROZEN = 10.0  # of silence after its lease has expired, before a running process is restarted; doubled each time
SUPERVISOR_GAP = 10.0  # between two ticks of the supervisor; a longer gap means that it was suspended itself
FROZEN_GRACE = 5.0  # for a process that is restarted because it is frozen, after SIGTERM, before it is killed
KILLED = 1.0  # for a killed process to end, before the supervisor continues without its end
HEAD_FROZEN = 310.0  # without an answer of a running replay, which may be writing its last checkpoint
PLACEMENT_WAIT = 5.0  # for resources, before that is reported and actors are preempted

# The end of a run.
CHECKPOINT_STATE = 6.0  # for the learner's state, before a checkpoint is written with its newest one
LEARNER_STATE = 6.0  # for the learner's last state, before a run ends without it
MEMBERS_LEAVE = 2.0  # for the members to leave after they were told to
ACTOR_DRAIN = 3.0  # for the last acknowledgements of an actor that is told to stop
TALK_THREAD = 5.0  # for the learner's communication thread to send its pending messages
PROCESS_LEAVE = 9.0  # for a process, or a whole run, that was told to stop, before it is killed
LEAVE_GRACE = 1.0  # for processes that the replay has told to leave, before they are sent SIGTERM
LAST_EVALUATION = 3_600.0  # for the last evaluation, which the replay awaits only for callbacks and trackers
TRACKER_LEAVE = 5.0  # for a tracker to write what is pending, after everything else is saved
WRITE_CHECKPOINT = 300.0  # for the replay's last checkpoint, which may be large
REPLAY_ORPHAN_LEAVE = 310.0  # for a replay to save after its supervisor has ended
SOLO_LEAVE = 30.0  # for a single-process run to save after its supervisor has ended
EXPERIMENT_LEAVE = 60.0  # for the runs of an experiment that are told to stop
STOP_ANSWER = 1.0  # after which an answer of the replay cannot belong to an earlier request
LOCK_RELEASE = 15.0  # for another process to release the lock of a run directory
LOCK_MESSAGE = 5.0  # of waiting for the lock, before that is reported

# Reports to the user.
NO_PROGRESS = 30.0  # without a transition or an update, before that is reported
REPLAY_SILENCE = 3.0  # of the replay, before an observer looks it up again
WATCH_RETURN = 15.0  # for a run to start, or for its head to restart, before `watch` ends
REDRAW = 0.25  # between two redraws of the live view
PACE_WINDOW = 300.0  # over which the speed of a run is measured, for the time left
SPEED_WINDOW = 10.0  # over which an actor's speed is measured
SPEED_STALE = 3.0  # after which an actor that has reported nothing new is shown as slowing down

# Ray.
RAY_CHECK_POLL = 1.0  # that one wait for the checks of nodes may take
RAY_ANSWER = 30.0  # of a Ray actor or node, which may have to start Python first
RAY_CONNECT = 5.0  # to a cluster
RAY_KILL = 5.0  # for Ray to confirm that a process was killed, before that is assumed
RAY_NODES_POLL = 1.0  # between two checks of the nodes
RAY_HEAD_POLL = 0.2  # between two lookups of a replay that has not registered itself yet
RAY_REGISTRY_POLL = 1.0  # between two lookups of a head that may have moved
RAY_LOCK_RELEASE = 120.0  # for the lock of a replay whose node was lost: NFS holds it for up to 90 s
SHARED_FOLDER = 5.0  # for a file that was written on one machine to be visible on another
SHARED_FOLDER_POLL = 0.1  # between two checks for that file

STOP_BUDGET = 10.0  # maximum time for a stopped run to save and end, as documented in the README


def check_budgets() -> list[str]:
    """Return the budgets that their parts exceed; empty if all add up."""
    budgets = {
        "a replay that is stopped (PROCESS_LEAVE)": (PROCESS_LEAVE, LEARNER_STATE + MEMBERS_LEAVE + SOCKET_LINGER),
        "an actor that is stopped (PROCESS_LEAVE)": (PROCESS_LEAVE, ACTOR_DRAIN + SOCKET_LINGER),
        "a learner that is stopped (PROCESS_LEAVE)": (PROCESS_LEAVE, TALK_THREAD + SOCKET_LINGER),
        "a run that is stopped (STOP_BUDGET)": (STOP_BUDGET, PROCESS_LEAVE + SUPERVISOR_POLL),
        "a replay whose supervisor is gone (REPLAY_ORPHAN_LEAVE)": (
            REPLAY_ORPHAN_LEAVE,
            LEARNER_STATE + MEMBERS_LEAVE + WRITE_CHECKPOINT,
        ),
        "a replay that is not frozen (HEAD_FROZEN)": (HEAD_FROZEN, WRITE_CHECKPOINT),
        "an experiment that is stopped (EXPERIMENT_LEAVE)": (EXPERIMENT_LEAVE, max(SOLO_LEAVE, STOP_BUDGET)),
        "a member that is not silent (MEMBER_SILENCE)": (MEMBER_SILENCE, 2 * HEARTBEAT),
        "a new run after a killed one (LOCK_RELEASE)": (LOCK_RELEASE, LEARNER_STATE + MEMBERS_LEAVE + LOCK_POLL),
    }
    return [f"{what}: {parts:g} s of {budget:g} s" for what, (budget, parts) in budgets.items() if parts > budget]
