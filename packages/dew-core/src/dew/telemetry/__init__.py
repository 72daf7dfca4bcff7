"""What a run tells: the journal it writes, the progress it shows and the services it reports to."""

from typing import TYPE_CHECKING

from dew.lazy import lazy

__getattr__, __dir__ = lazy(
    __name__,
    {
        "FanOut": "dew.telemetry.fanout:dew-core",
        "JournalTracker": "dew.telemetry.journal:dew-core",
        "ProfileWindow": "dew.telemetry.config:dew-core",
        "ProgressTracker": "dew.telemetry.progress:dew-core",
        "RunHistory": "dew.telemetry.history:dew-core",
        "Tracker": "dew.telemetry.tracker:dew-core",
        "WandbTracker": "dew.telemetry.weights_and_biases:dew-core",
        "open_tracker": "dew.telemetry.opening:dew-core",
        "read_journal": "dew.telemetry.history:dew-core",
    },
)

if TYPE_CHECKING:
    from dew.telemetry.config import ProfileWindow as ProfileWindow
    from dew.telemetry.fanout import FanOut as FanOut
    from dew.telemetry.history import RunHistory as RunHistory
    from dew.telemetry.history import read_journal as read_journal
    from dew.telemetry.journal import JournalTracker as JournalTracker
    from dew.telemetry.opening import open_tracker as open_tracker
    from dew.telemetry.progress import ProgressTracker as ProgressTracker
    from dew.telemetry.tracker import Tracker as Tracker
    from dew.telemetry.weights_and_biases import WandbTracker as WandbTracker
