#pragma once

#include <string_view>

namespace tessera {

// The style sheet (page.css) and the script (page.js) of a report.
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace tessera
