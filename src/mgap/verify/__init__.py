"""Check the installed methods against files of reference vectors (`mgap verify DIR`)."""
