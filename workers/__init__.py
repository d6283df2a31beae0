"""One package of files for each kind of process that the front starts. Nothing imports them: the front execs them."""
