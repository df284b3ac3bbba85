# Regular, so that a package that installs its own `tests` does not hide it.
