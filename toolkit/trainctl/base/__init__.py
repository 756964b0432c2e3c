"""What every layer above may use: configuration, paths, files, cells, processes, clocks."""
