#pragma once

#include <string_view>

namespace tessera {

// What the text of a trace begins and ends with; between them each event has a line.
inline constexpr std::string_view kTraceHead = R"({"displayTimeUnit":"ms","traceEvents":[)";
inline constexpr std::string_view kTraceTail = "]}";

}  // namespace tessera
