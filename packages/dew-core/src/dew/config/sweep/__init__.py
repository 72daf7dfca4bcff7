"""Search hyperparameters: trials of one recipe over a space of its fields, kept in a ledger that survives
a kill."""

from dew.config.sweep.driver import Sweep as Sweep
from dew.config.sweep.ledger import Trial as Trial
from dew.config.sweep.space import Choice as Choice
from dew.config.sweep.space import Dimension as Dimension
from dew.config.sweep.space import Range as Range
from dew.config.sweep.space import parse_dimension as parse_dimension
