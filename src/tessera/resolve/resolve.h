#pragma once

#include <cstdint>
#include <string_view>

#include "tessera/config/config.h"
#include "tessera/config/run_config.h"
#include "tessera/models/model.h"

namespace tessera {

struct Devices;
struct RunLayout;

// The model that `config` names, its flavor's sizes replaced by those that are given, with the
// adapters of [lora]. Families are registered in models/family.cc. Errors: kInvalidConfig naming
// the key and where it was set.
ModelDescription resolve_model(const RunConfig& config);

// `config` with everything that follows from other keys or the machine written out: model sizes,
// targets of adapters, ranks, threads. Errors: kInvalidConfig.
RunConfig resolve(RunConfig config, ConfigUse use = ConfigUse::kRun);

// The config that a checkpoint holds, for a use of its model on the CPU: the machine that trained
// it may have had devices, and a way to talk, that are not here. Errors: as parse_run_config();
// kInvalidConfig.
RunConfig resolve_stored(std::string_view text);

// The same as resolve() for all but [model]. Errors: kInvalidConfig.
RunConfig resolve_run(RunConfig config, ConfigUse use = ConfigUse::kRun);

// The same for ranks, device and threads alone. For a plan, run.device = "cuda" needs no GPU here.
// Errors: kInvalidConfig.
RunConfig resolve_ranks(RunConfig config, ConfigUse use = ConfigUse::kRun);

// Writes "cpu" or "cuda" for run.device = "auto", and says which. Errors: kInvalidConfig where it
// is "cuda" and there is no GPU for it.
void resolve_device(RunConfig& config);

// Ranks of a resolved run on this machine: all of them as threads of one process, or as many as a
// launcher started here.
std::int64_t ranks_on_machine(const RunConfig& config);

// Bytes that each of `ranks` ranks on this machine may use of its device (make_device_backend()),
// which ranks may share: what the device in use has free that leaves least, without a reserve for
// what libraries take beside the plan. Where ranks talk by NCCL and so share none, `nccl_bytes` are
// what it takes of each; else 0. One plan is for all ranks.
// Errors: kDeviceError where there is no device.
std::int64_t device_memory_limit(const Devices& devices,
                                 std::int64_t ranks,
                                 std::int64_t nccl_bytes);

// What NCCL takes of a rank's device at most: it has a group along each axis, and where collectives
// overlap, one for either stream; and one of two ranks for each of a rank's `num_channels`. Peers
// along the outermost of several levels, a network, have fewer channels.
std::int64_t nccl_reserve_bytes(const RunLayout& layout, bool overlap, std::int64_t num_channels);

// Bytes that each rank of a resolved run of that layout may use, with so many channels:
// memory.limit_bytes, or its part of what the machine or device_memory_limit() has.
std::int64_t memory_limit(const RunConfig& config,
                          const RunLayout& layout,
                          std::int64_t num_channels);

}  // namespace tessera
