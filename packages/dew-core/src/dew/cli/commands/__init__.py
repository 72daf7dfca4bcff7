"""The commands dew-core ships; each module has `main(argv) -> exit status`."""
