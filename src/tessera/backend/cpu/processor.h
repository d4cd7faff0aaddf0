#pragma once

#include <string_view>

namespace tessera::cpu {

// The widest instruction set that matrix products use on this machine, as oneDNN names it:
// "avx2", "avx512_core_amx".
std::string_view processor();

}  // namespace tessera::cpu
