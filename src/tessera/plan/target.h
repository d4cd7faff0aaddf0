#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/cluster.h"
#include "tessera/passes/program/lower.h"

namespace tessera {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

std::string_view to_string(DeviceKind kind);  // "cpu", "cuda"

// What compiling must know of the device that a program is for: a value, made without the device
// and without its plugin.
struct Target {
  DeviceKind kind = DeviceKind::kCpu;
  // Of a CPU: the instruction set that products use, on which their workspace depends.
  std::string processor = {};
  DeviceSpec device = {};  // its name, and what is known of it

  bool is_device() const { return kind != DeviceKind::kCpu; }

  // Bytes of logits that exist at one time; 0: those of all rows.
  std::int64_t logits_bytes() const;

  // Whether a product may apply gelu before it writes its sums.
  bool has_gelu_products() const { return kind == DeviceKind::kCuda; }

  // What the device has for a rank's arena: its memory without what the driver's and NVIDIA's
  // libraries take, without `native_bytes`, those of NCCL. 0 where its memory is not known.
  std::int64_t arena_limit(std::int64_t native_bytes) const;

  friend bool operator==(const Target&, const Target&) = default;
};

// What a device holds beside the arena, once for all ranks of a process: CUDA's context, about half
// a GiB, and what comes after the plan is made: modules that cuBLASLt and cuDNN load with the first
// product or attention of a kind, and recorded graphs.
inline constexpr std::int64_t kLibrariesReserveBytes = std::int64_t{1} << 30;

// This machine's CPU.
Target cpu_target();

// A GPU that the CUDA backend runs on, of which nothing else is known.
Target cuda_target();

// By name: "cpu", "cuda" or a device whose data sheet is known: "h100", or "H100 SXM" as cluster
// files call it.
// Errors: kInvalidConfig with the names that there are.
Target find_target(std::string_view name);

std::vector<std::string_view> target_names();

// As TOML; parses back to an equal target.
std::string to_string(const Target& target);

// `source` names the text in errors. Errors: kInvalidConfig with place, found and expected.
Target parse_target(std::string_view text, std::string_view source);

// What the kernels of `target` need, run by `threads` threads where it is a CPU; asks no device.
// Errors: kInvalidConfig where the target is a CPU with another instruction set than this
// machine's, on which oneDNN cannot plan its products.
WorkspaceQuery workspace_query(const Target& target, std::int64_t threads);

}  // namespace tessera
