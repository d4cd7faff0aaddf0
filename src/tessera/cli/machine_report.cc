#include "tessera/cli/machine_report.h"

#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

constexpr std::int64_t kGibibyte = std::int64_t{1} << 30;

std::string_view describe(Bf16 bf16) {
  switch (bf16) {
    case Bf16::kEmulated:
      return "emulated";
    case Bf16::kVector:
      return "native, vector (AVX512_BF16)";
    case Bf16::kMatrix:
      return "native, matrix (AMX)";
  }
  return "?";
}

std::string describe_devices(const MachineFacts& facts) {
  const Devices& devices = facts.devices;
  std::string text;
  for (const Device& device : devices.usable) {
    text += format("gpu       {} ({}), {} free of {}\n",
                   device.name,
                   device.architecture,
                   format_bytes(device.free_bytes),
                   format_bytes(device.memory_bytes));
  }
  if (devices.usable.empty()) {
    text = "gpu       none that a run can use\n";
  }
  if (!devices.versions.empty()) {
    text += format(
        "cuda      {}, {}\n", devices.versions, facts.nccl.empty() ? "NCCL none" : facts.nccl);
  }
  return text;
}

std::string describe_facts(const MachineFacts& facts) {
  return format(
      "{}\n"
      "cpu       {}\n"
      "cores     {} usable of {}\n"
      "kernels   own: {} (Highway); matrix products: {} (oneDNN)\n"
      "bf16      {}\n"
      "memory    {} usable of {}\n"
      "disk      {} free in {}\n"
      "{}",
      facts.build,
      facts.cpu,
      facts.usable_cores,
      facts.cores,
      facts.simd,
      facts.dnnl_isa,
      describe(facts.bf16),
      format_bytes(facts.usable_memory_bytes),
      format_bytes(facts.memory_bytes),
      format_bytes(facts.free_disk_bytes),
      facts.directory,
      describe_devices(facts));
}

void note_processor(const MachineFacts& facts, std::vector<std::string>& notes) {
  if (facts.usable_cores < facts.cores) {
    notes.push_back(
        format("{} of {} cores are out of reach: widen the job's allocation (srun --cpus-per-task, "
               "taskset, docker --cpus)",
               facts.cores - facts.usable_cores,
               facts.cores));
  }
  if (facts.simd_is_narrow) {
    notes.emplace_back(
        "no AVX2: training runs several times slower; use a processor made after 2013, or let the "
        "virtual machine see its host's (QEMU: -cpu host)");
  }
  switch (facts.bf16) {
    case Bf16::kEmulated:
      notes.emplace_back(
          "no native bf16: leave train.dtype at f32, or use a processor with AVX512_BF16 or AMX");
      break;
    case Bf16::kVector:
      notes.emplace_back(
          "no AMX: bf16 saves memory, but f32 can be faster; try both values of train.dtype");
      break;
    case Bf16::kMatrix:
      break;
  }
}

void note_space(const MachineFacts& facts, std::vector<std::string>& notes) {
  if (facts.usable_memory_bytes < facts.memory_bytes) {
    notes.emplace_back(
        "a control group limits the memory: raise the job's limit (srun --mem, docker --memory)");
  }
  if (facts.usable_memory_bytes < kGibibyte) {
    notes.emplace_back("less than 1 GiB of memory: only tiny models fit");
  }
  if (!facts.directory_is_writable) {
    notes.push_back(
        format("{} is not writable: set run.dir to a directory that is, or change to it",
               facts.directory));
  }
  if (facts.free_disk_bytes < kGibibyte) {
    notes.emplace_back(
        "less than 1 GiB of disk: a checkpoint takes 12 bytes per parameter; free some space, or "
        "set run.dir to another disk");
  }
  if (facts.build_type != "Release") {
    notes.push_back(format("a {} build is slow: configure with -DCMAKE_BUILD_TYPE=Release",
                           facts.build_type.empty() ? "untyped" : facts.build_type));
  }
}

void note_devices(const MachineFacts& facts, std::vector<std::string>& notes) {
  const Devices& devices = facts.devices;
  for (const std::string& unusable : devices.unusable) {
    notes.push_back(unusable);
  }
  if (!devices.problem.empty() && devices.unusable.empty()) {
    notes.push_back(format("for runs on a GPU (run.device = \"cuda\"): {}", devices.problem));
  }
  if (devices.usable.empty()) {
    return;  // libraries would not help
  }
  notes.insert(notes.end(), devices.missing.begin(), devices.missing.end());
  if (facts.nccl.empty()) {
    notes.push_back(format("for runs on several GPUs: {}", facts.nccl_problem));
  }
}

}  // namespace

std::string format_report(const MachineFacts& facts) {
  std::vector<std::string> notes;
  note_processor(facts, notes);
  note_space(facts, notes);
  note_devices(facts, notes);
  std::string text = describe_facts(facts);
  text += notes.empty() ? "\nNothing is missing.\n" : "\nWhat would help:\n";
  for (const std::string& note : notes) {
    text += format("- {}\n", note);
  }
  return text;
}

}  // namespace tessera
