# Names in the text of programs that have changed since commit 4257be5, for compare_builds.sh: one
# substitution a line (sed --regexp-extended), oldest first.
s/^( *(buffer [0-9]+|scalar) )"seed"/\1"inverse_labels"/
