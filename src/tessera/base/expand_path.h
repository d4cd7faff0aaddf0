#pragma once

#include <string>
#include <string_view>

namespace tessera {

// A path as users write it where no shell has seen it: a leading ~ is the home directory, $NAME and
// ${NAME} are environment variables, and $$ is a $. Errors: kInvalidConfig for a variable that is
// not set or empty, and for what only a shell knows: ~NAME, $(COMMAND), ${NAME:-..}.
std::string expand_path(std::string_view path);

// The text of which expand_path() makes this path.
std::string unexpanded_path(std::string_view path);

}  // namespace tessera
