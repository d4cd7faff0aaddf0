#pragma once

#include <span>
#include <string>
#include <vector>

namespace tessera {

// Libraries that the program loads only where a run needs them.

// Paths of a plugin's file in the order in which they are tried: beside libtessera.so, beside the
// program, and without a directory, so that the system looks for it.
std::vector<std::string> plugin_places(const std::string& file);

// What the C function `entry` of the first of `places` that can be loaded returns; that one stays
// loaded. Null where none can: `tried` then says why, a line each that begins with a new line.
// What is returned begins with two members, the number of the interface and Tessera's version.
// Errors: kInvalidConfig for a library that is no plugin, or of another version.
const void* load_plugin(std::span<const std::string> places,
                        const char* entry,
                        int interface,
                        std::string& tried);

}  // namespace tessera
