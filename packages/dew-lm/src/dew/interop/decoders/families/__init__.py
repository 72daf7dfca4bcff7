"""One module a family: the data by which `dew.interop.decoders` reads and writes it."""
