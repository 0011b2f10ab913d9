"""The files of a project become a `Project`: frontends, the compilation of all files, its cache."""
