#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Facts that the build recorded (build_info.cc.in).
struct BuildInfo {
  std::string_view version;
  std::string_view commit;  // "unknown" when built outside of git
  std::string_view compiler;
  std::string_view build_type;
};

BuildInfo build_info();

// Several lines: version, commit and what the program was built with.
std::string describe_build();

}  // namespace tessera
