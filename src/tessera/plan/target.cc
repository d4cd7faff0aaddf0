#include "tessera/plan/target.h"

#include <algorithm>
#include <array>
#include <memory>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/dispatch.h"
#include "tessera/backend/cpu/processor.h"
#include "tessera/backend/cuda/kernels/op_workspace.h"
#include "tessera/base/error.h"
#include "tessera/base/toml_section.h"
#include "tessera/passes/graph/chunk_loss.h"
#include "tessera/passes/program/lower.h"

namespace tessera {
namespace {

struct KnownDevice {
  std::string_view name;
  DeviceSpec device;
};

// GPUs that the kernels run on. Source: NVIDIA's data sheets (H100, H200, 2023 to 2024), dense
// peaks, f32 without TF32.
const std::array<KnownDevice, 4>& known_devices() {
  constexpr std::int64_t kGigabyte = 1'000'000'000;
  static const std::array<KnownDevice, 4> kDevices = {
      {{"h100",
        {.name = "H100 SXM",
         .memory_bytes = 80 * kGigabyte,
         .memory_bandwidth = 3.35e12,
         .peak_flops = {.f32 = 67e12, .bf16 = 989e12}}},
       {"h100-nvl",
        {.name = "H100 NVL",
         .memory_bytes = 94 * kGigabyte,
         .memory_bandwidth = 3.9e12,
         .peak_flops = {.f32 = 60e12, .bf16 = 835e12}}},
       {"h100-pcie",
        {.name = "H100 PCIe",
         .memory_bytes = 80 * kGigabyte,
         .memory_bandwidth = 2.0e12,
         .peak_flops = {.f32 = 51e12, .bf16 = 756e12}}},
       {"h200",
        {.name = "H200 SXM",
         .memory_bytes = 141 * kGigabyte,
         .memory_bandwidth = 4.8e12,
         .peak_flops = {.f32 = 67e12, .bf16 = 989e12}}}}};
  return kDevices;
}

DeviceKind read_kind(const TomlSection& section) {
  const std::string text = read_text(section, "kind");
  for (const DeviceKind kind : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    if (text == to_string(kind)) {
      return kind;
    }
  }
  refuse(section, "kind", require(section, "kind", ""), "\"cpu\" or \"cuda\"");
}

}  // namespace

std::string_view to_string(DeviceKind kind) {
  return kind == DeviceKind::kCpu ? "cpu" : "cuda";
}

std::int64_t Target::logits_bytes() const {
  return kind == DeviceKind::kCuda ? kDeviceLogitsBytes : 0;
}

std::int64_t Target::arena_limit(std::int64_t native_bytes) const {
  return std::max<std::int64_t>(0, device.memory_bytes - kLibrariesReserveBytes - native_bytes);
}

Target cpu_target() {
  return {.kind = DeviceKind::kCpu,
          .processor = std::string(cpu::processor().name),
          .device = {.name = "cpu"}};
}

Target cuda_target() {
  return {.kind = DeviceKind::kCuda, .device = {.name = "cuda"}};
}

Target find_target(std::string_view name) {
  if (name == "cpu") {
    return cpu_target();
  }
  if (name == "cuda") {
    return cuda_target();
  }
  const auto& devices = known_devices();
  const auto* const found = std::ranges::find_if(devices, [&](const KnownDevice& known) {
    return name == known.name || name == known.device.name;
  });
  if (found == devices.end()) {
    std::string known;
    for (const std::string_view target : target_names()) {
      known += format("{}{}", known.empty() ? "" : ", ", target);
    }
    fail(ErrorCode::kInvalidConfig, "\"{}\" is not a target, expected one of {}", name, known);
  }
  return {.kind = DeviceKind::kCuda, .device = found->device};
}

std::vector<std::string_view> target_names() {
  std::vector<std::string_view> names = {"cpu", "cuda"};
  for (const KnownDevice& known : known_devices()) {
    names.push_back(known.name);
  }
  return names;
}

std::string to_string(const Target& target) {
  return format("kind = {}\nprocessor = {}\n\n[device]\n{}",
                toml_string(to_string(target.kind)),
                toml_string(target.processor),
                to_toml(target.device));
}

Target parse_target(std::string_view text, std::string_view source) {
  const toml::table table = parse_toml(text, source);
  const TomlSection file{table, source, ""};
  refuse_unknown_keys(file, std::to_array<std::string>({"kind", "processor", "device"}));
  return {.kind = read_kind(file),
          .processor = read_text(file, "processor"),
          .device = read_device(require_table(file, "device", "a section [device]"))};
}

WorkspaceQuery workspace_query(const Target& target, std::int64_t threads) {
  if (target.kind == DeviceKind::kCuda) {
    return cuda::op_workspace_bytes;
  }
  TESSERA_REQUIRE(target.processor == cpu::processor().name,
                  ErrorCode::kInvalidConfig,
                  "a program for a CPU with {} can be compiled only on such a CPU, whose products "
                  "oneDNN plans; this one has {}",
                  target.processor,
                  cpu::processor().name);
  return [context = std::make_shared<cpu::Context>(static_cast<int>(threads))](
             const Op& op, std::span<const View> operands, std::span<const View> results) {
    return cpu::op_workspace_bytes(*context, op, operands, results);
  };
}

}  // namespace tessera
