"""Name the things a run is made of: models, objectives, datasets, metrics and every other kind plugins add.

`datasets.names()` lists, `datasets["digits"]` and `datasets.digits` import, and
`datasets.build("digits", **fields)` validates fields and constructs.
"""

from dew.registry.kinds import DtypeName as DtypeName
from dew.registry.kinds import commands as commands
from dew.registry.kinds import datasets as datasets
from dew.registry.kinds import encoders as encoders
from dew.registry.kinds import metrics as metrics
from dew.registry.kinds import models as models
from dew.registry.kinds import name_of as name_of
from dew.registry.kinds import objectives as objectives
from dew.registry.kinds import optimizers as optimizers
from dew.registry.kinds import presets as presets
from dew.registry.kinds import readers as readers
from dew.registry.kinds import recipes as recipes
from dew.registry.kinds import registry_of as registry_of
from dew.registry.kinds import samplers as samplers
from dew.registry.kinds import schedulers as schedulers
from dew.registry.kinds import schedules as schedules
from dew.registry.kinds import tasks as tasks
from dew.registry.kinds import tokenizers as tokenizers
from dew.registry.kinds import trackers as trackers
from dew.registry.kinds import writers as writers
from dew.registry.registry import Registry as Registry
from dew.registry.registry import UnknownComponent as UnknownComponent
