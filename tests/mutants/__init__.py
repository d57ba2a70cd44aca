"""Each rule of a package, broken: a named test must fail."""
