"""From scores to something to read: plots and pages. One file each, no network, nothing to install."""
