# Names in the text of programs that have changed since commit 4257be5, for compare_builds.sh: one
# substitution a line (sed --regexp-extended), oldest first.
