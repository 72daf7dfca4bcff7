__path__ = __import__("pkgutil").extend_path(__path__, __name__)

from dew.lazy import lazy

__getattr__, __dir__ = lazy(__name__, {})
