"""Services that every package uses: settings, devices, logging, paths, safe writing of files."""
