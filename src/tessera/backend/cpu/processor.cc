#include "tessera/backend/cpu/processor.h"

#include <algorithm>
#include <array>

#include <oneapi/dnnl/dnnl.h>

namespace tessera::cpu {
namespace {

struct InstructionSet {
  unsigned mask;  // of the sets that it extends, and its own
  Processor processor;
};

// Best first.
constexpr std::array<InstructionSet, 8> kSets = {
    {{dnnl_cpu_isa_avx512_core_amx, {"avx512_core_amx", "AVX-512 with AMX"}},
     {dnnl_cpu_isa_avx512_core_bf16, {"avx512_core_bf16", "AVX-512 with BF16"}},
     {dnnl_cpu_isa_avx512_core_vnni, {"avx512_core_vnni", "AVX-512 with VNNI"}},
     {dnnl_cpu_isa_avx512_core, {"avx512_core", "AVX-512"}},
     {dnnl_cpu_isa_avx2_vnni, {"avx2_vnni", "AVX2 with VNNI"}},
     {dnnl_cpu_isa_avx2, {"avx2", "AVX2"}},
     {dnnl_cpu_isa_avx, {"avx", "AVX"}},
     {dnnl_cpu_isa_sse41, {"sse41", "SSE4.1"}}}};

}  // namespace

Processor processor() {
  const auto isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  const auto* const found = std::ranges::find_if(
      kSets, [&](const InstructionSet& set) { return (isa & set.mask) == set.mask; });
  return found == kSets.end() ? Processor{.name = "none", .words = "no vector instructions"}
                              : found->processor;
}

}  // namespace tessera::cpu
