#compdef haversack
# Completion of haversack in zsh. The program says what fits: commands, options, paths, and the names that the daemon has.
_haversack() {
    local -a found directories others
    local result=1
    found=("${(@f)$(command haversack complete zsh -- "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    directories=("${(@M)found:#*/}")
    others=("${(@)${(@)found:#*/}:#}")
    (( $#directories )) && _describe -V directories directories -S '' && result=0
    (( $#others )) && _describe -V values others && result=0
    return result
}
# Zsh loads a file of fpath when it needs the function, and runs it as the function.
if [[ $funcstack[1] == _haversack ]]; then
    _haversack "$@"
else
    compdef _haversack haversack
fi
