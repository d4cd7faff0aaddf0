# Names in the text of programs that have changed since programs have pools and slots, for
# compare_builds.sh: one substitution a line (sed --regexp-extended), oldest first. None has.
