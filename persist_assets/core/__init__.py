"""The words of the project: frozen values, errors, settings, types, time values, partitions."""
