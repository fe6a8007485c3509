# Completion of haversack in fish. The program says what fits: commands, options, paths, and the names that the daemon has.
complete --command haversack --no-files --keep-order --arguments '(command haversack complete fish -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token --cut-at-cursor) 2>/dev/null)'
