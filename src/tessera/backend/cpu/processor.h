#pragma once

#include <string_view>

namespace tessera::cpu {

// The widest instruction set that matrix products use on this machine.
struct Processor {
  std::string_view name;   // as oneDNN calls it: "avx2", "avx512_core_amx"
  std::string_view words;  // for people: "AVX2", "AVX-512 with AMX"
};

Processor processor();

}  // namespace tessera::cpu
