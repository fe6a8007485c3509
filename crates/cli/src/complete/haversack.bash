# Completion of haversack in bash. The program says what fits: commands, options, paths, and the names that the daemon has.
_haversack() {
    local before=("${COMP_WORDS[@]:0:COMP_CWORD}")
    # Bash makes words of '=' and ':'. If the cursor is behind one, the next word is empty.
    if [[ ${COMP_WORDS[COMP_CWORD]-} =~ ^[=:@]+$ ]]; then before+=("${COMP_WORDS[COMP_CWORD]}"); fi
    mapfile -t COMPREPLY < <(command haversack complete bash -- "${before[@]}" "${2-}" 2>/dev/null)
    # Spaces in paths get a backslash, directories do not end the word. Names and options need neither.
    if [[ ${COMPREPLY-} == *[!A-Za-z0-9._-]* ]]; then compopt -o filenames 2>/dev/null; fi
    if [[ ${COMPREPLY-} == *[/=:] ]]; then compopt -o nospace 2>/dev/null; fi
    return 0
}
complete -F _haversack haversack
