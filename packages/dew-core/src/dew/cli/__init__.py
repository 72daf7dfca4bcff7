"""The command line. Its first stage reads plain strings, so that help and lists import no numerics."""

from dew.cli.entry import main as main
from dew.cli.errors import UserError as UserError
