#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tessera/backend/devices.h"

namespace tessera {

// How fast the machine computes in bf16.
enum class Bf16 { kEmulated, kVector, kMatrix };

// What `tessera doctor` found.
struct MachineFacts {
  std::string build;  // of describe_build()
  std::string build_type;
  std::string cpu;              // the processor's name
  int cores = 0;                // of the machine
  int usable_cores = 0;         // of this process
  std::string simd;             // instruction set of the own kernels, by Highway's name
  bool simd_is_narrow = false;  // less than 256 bits on a processor family that has them
  std::string dnnl_isa;         // of oneDNN's kernels
  Bf16 bf16 = Bf16::kEmulated;
  std::int64_t memory_bytes = 0;         // of the machine
  std::int64_t usable_memory_bytes = 0;  // of this process
  std::string directory;
  bool directory_is_writable = false;
  std::int64_t free_disk_bytes = 0;  // below `directory`
  Devices devices = {};              // GPUs
  std::string nccl = {};             // by which several of them talk: "NCCL 2.28.9", empty for none
  std::string nccl_problem = {};     // why there is none, and what to do
};

// Looks at this machine. Errors: kDeviceError when the system does not say what it has.
MachineFacts inspect_machine(const std::filesystem::path& directory);

// Plain text: the facts, then what is missing and how to get it, or that nothing is.
std::string format_report(const MachineFacts& facts);

}  // namespace tessera
