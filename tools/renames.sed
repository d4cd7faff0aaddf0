# Names in the text of programs that have changed since commit 4257be5, for compare_builds.sh: one
# substitution a line (sed --regexp-extended), oldest first.
s/^( *(buffer [0-9]+|scalar) )"seed"/\1"inverse_labels"/
s/^( *state "(gradient|moment1|moment2|master|secondary)\.([^"]*)") =/\1 \2 of "\3" =/
s/^( *state "loss") =/\1 sum =/
s/^( *state "[^"]*") =/\1 parameter =/
s/(= matmul \{[^}]*)bias=true, gelu=true, keep_argument=true/\1epilogue="gelu_and_argument"/
s/(= matmul \{[^}]*)bias=true, gelu=true/\1epilogue="gelu"/
s/(= matmul \{[^}]*)bias=true/\1epilogue="bias"/
s/(= matmul \{[^}]*)gelu_backward=true/\1epilogue="gelu_backward"/
