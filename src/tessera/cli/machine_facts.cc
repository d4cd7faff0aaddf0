#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <hwy/targets.h>
#include <unistd.h>

#include <oneapi/dnnl/dnnl.h>

#include "tessera/backend/cpu/processor.h"
#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/cli/build_info.h"
#include "tessera/cli/machine_report.h"
#include "tessera/comm/nccl/nccl_world.h"

namespace tessera {
namespace {

bool has(unsigned isa, dnnl_cpu_isa_t wanted) {
  return (isa & wanted) == wanted;
}

Bf16 bf16_of(unsigned isa) {
  if (has(isa, dnnl_cpu_isa_avx512_core_amx)) {
    return Bf16::kMatrix;
  }
  return has(isa, dnnl_cpu_isa_avx512_core_bf16) ? Bf16::kVector : Bf16::kEmulated;
}

// Highway numbers its targets from the best (lowest bit) on.
std::int64_t best_simd_target() {
  const std::int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets & -targets;
}

bool is_narrow(std::int64_t simd_target) {
  constexpr std::int64_t kNarrow = HWY_SSSE3 | HWY_SSE4 | HWY_EMU128 | HWY_SCALAR;
  return (simd_target & kNarrow) != 0;
}

std::int64_t free_disk_bytes(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot ask for the free space of {}: {}",
                  directory.string(),
                  error.message());
  return static_cast<std::int64_t>(space.available);
}

}  // namespace

MachineFacts inspect_machine(const std::filesystem::path& directory) {
  std::string nccl_problem;
  const std::string nccl = nccl_version(nccl_problem);
  const std::int64_t simd = best_simd_target();
  const auto isa = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  return {.build = describe_build(),
          .build_type = std::string(build_info().build_type),
          .cpu = cpu_name(),
          .cores = static_cast<int>(std::thread::hardware_concurrency()),
          .usable_cores = usable_cores(),
          .simd = hwy::TargetName(simd),
          .simd_is_narrow = is_narrow(simd),
          .dnnl_isa = std::string(cpu::processor().words),
          .bf16 = bf16_of(isa),
          .memory_bytes = machine_memory_bytes(),
          .usable_memory_bytes = usable_memory_bytes(),
          .directory = std::filesystem::weakly_canonical(directory).string(),
          .directory_is_writable = ::access(directory.c_str(), W_OK) == 0,
          .free_disk_bytes = free_disk_bytes(directory),
          .devices = find_devices(),
          .nccl = nccl,
          .nccl_problem = nccl_problem};
}

}  // namespace tessera
