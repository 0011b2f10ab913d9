"""The vocabulary: frozen values, errors, settings, types, time values, partitions."""
