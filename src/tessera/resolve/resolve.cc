#include "tessera/resolve/resolve.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/backend/devices.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/machine.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/comm/nccl/nccl_world.h"
#include "tessera/config/config.h"
#include "tessera/config/fit_schedule.h"
#include "tessera/models/family.h"
#include "tessera/plan/run_layout.h"
#include "tessera/plan/target.h"
#include "tessera/resolve/adapters.h"
#include "tessera/resolve/weights_section.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

namespace {

constexpr std::int64_t kMebibyte = std::int64_t{1} << 20;

// NCCL's kernels, and what it keeps for each device. An estimate.
constexpr std::int64_t kNcclBytes = 256 * kMebibyte;

// What a rank has on its device for one peer and channel, as NCCL 2.28.9 allocates it: buffers to
// receive in of 0.5, 4.7 and 4 MiB, one for each protocol (init.cc, computeBuffSizes()), and less
// to send from, each rounded up to 2 MiB (transport/p2p.cc, p2pRecvSetup() and p2pSendSetup()).
constexpr std::int64_t kNcclConnectionBytes = (10 + 2) * kMebibyte;
constexpr std::int64_t kNcclChannels = 32;  // at most, by what it logs on nodes of eight Hoppers

// Over a network, one peer has few channels: two for a network card, four of NCCL 2.29 for one of
// 50 GB/s (graph/paths.cc, ncclTopoGetNchannels()). Each has buffers to receive in as above, and as
// much to send from (transport/net.cc).
constexpr std::int64_t kNcclFarPeerBytes = kMebibyte * 4 * (10 + 10);

// Of one that is as near, or farther.
std::int64_t nccl_peer_bytes(bool is_far) {
  return is_far ? kNcclFarPeerBytes : kNcclChannels * kNcclConnectionBytes;
}

// Rings and trees have the neighbours on either side as peers.
std::int64_t nccl_ring_bytes(std::int64_t size) {
  constexpr std::int64_t kNeighbours = 2;
  return std::min(size - 1, kNeighbours) * kNcclChannels * kNcclConnectionBytes;
}

void require_flavor(const RunConfig& run, const ModelFamily& family) {
  const std::string& flavor = run.model.flavor;
  std::string known;
  for (const std::string_view name : family.flavors) {
    known += format("{}\"{}\"", known.empty() ? "" : ", ", name);
  }
  TESSERA_REQUIRE(flavor.empty() || std::ranges::count(family.flavors, flavor) > 0,
                  ErrorCode::kInvalidConfig,
                  "{}: found \"{}\", expected one of {}",
                  placed(run, "model.flavor"),
                  flavor,
                  known);
}

// Of the tokenizer that the run will have.
std::optional<std::int64_t> tokenizer_entries(const RunConfig& run) {
  std::error_code error;
  return std::filesystem::exists(run.tokenizer.path, error)
             ? Tokenizer::load(run.tokenizer.path).vocab_size()
             : run.tokenizer.train_vocab;
}

// family.resolve(), whose errors say where a key that they name was set, else the flavor: what does
// not fit may be of either.
ModelSection resolve_placed(const RunConfig& run, const ModelSection& section) {
  try {
    return model_family(section.name).resolve(section);
  } catch (const Error& error) {
    const auto& places = run.origins.places;
    auto place = std::ranges::find_if(places, [&](const auto& entry) {
      return entry.first.starts_with("model.") &&
             error.message().find(entry.first + " ") != std::string::npos;
    });
    place = place == places.end() ? places.find("model.flavor") : place;
    if (error.code() != ErrorCode::kInvalidConfig || place == places.end()) {
      throw;
    }
    fail(error.code(), "{}: {}", place->second, error.message());
  }
}

// [model] with everything written out. Sizes come from the weights only where nothing else says
// them: what was resolved once needs them no more.
ModelSection resolved_section(const RunConfig& run) {
  const ModelFamily& family = model_family(run.model.name);
  require_flavor(run, family);
  const ModelSection& given = run.model;
  const bool is_sized = !given.flavor.empty() ||
                        (given.dim && given.layers && given.heads && given.ffn && given.vocab);
  const bool grows = given.grow_vocab && !given.vocab;
  if (run.model.weights.empty() || (is_sized && !grows)) {
    return resolve_placed(run, run.model);
  }
  ModelSection sizes = weights_section(run.model.weights);
  TESSERA_REQUIRE(sizes.name == run.model.name,
                  ErrorCode::kInvalidConfig,
                  "{}: found \"{}\", expected \"{}\", of which model.weights = \"{}\" is",
                  placed(run, "model.name"),
                  run.model.name,
                  sizes.name,
                  run.model.weights);
  const std::optional<std::int64_t> known = sizes.vocab;
  if (grows) {
    sizes.vocab = std::max(known, tokenizer_entries(run));
  }
  if ((run.model.vocab ? run.model.vocab : sizes.vocab) != known) {
    sizes.padded_vocab.reset();  // it is of their own vocabulary
  }
  return resolve_placed(run, completed(run.model, sizes));
}

// Whether the ranks are processes of a launcher, which on GPUs have NCCL alone to talk by.
bool is_launched() {
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  return launch && launch->size > 1;
}

// Why ranks on `devices` cannot talk by NCCL; empty where they can. A launcher may show each of its
// ranks a GPU of its own: who says that there are GPUs is believed, and if two ranks then have the
// same, they find out when they meet.
std::string native_problem(const RunConfig& config, const Devices& devices) {
  const std::int64_t ranks = ranks_on_machine(config);
  const auto gpus = static_cast<std::int64_t>(devices.usable.size());
  const bool is_said = is_launched() && config.run.device == "cuda";
  if (ranks > gpus && !is_said) {
    return format("{} ranks share {} GPUs here, and NCCL needs one for each rank{}",
                  ranks,
                  gpus,
                  is_launched() ? "; where each rank is shown one of its own, say run.device = "
                                  "\"cuda\""
                                : "");
  }
  std::string problem;
  nccl_version(problem);
  return problem;
}

// Why a run has no device beside the CPU; empty where it has.
std::string device_problem(const RunConfig& config) {
  const Devices devices = find_devices();
  if (!devices.problem.empty() || !is_launched()) {
    return devices.problem;
  }
  const std::string problem = native_problem(config, devices);
  return problem.empty() ? "" : "ranks on GPUs that MPI starts talk by NCCL: " + problem;
}

// Writes how ranks talk, once the device is known.
void resolve_reduction(RunConfig& config) {
  std::optional<Reduction>& reduction = config.comm.reduction;
  const bool alone = !is_launched() && config.parallel.ranks.value_or(1) == 1;
  if (config.run.device != "cuda" || alone) {
    TESSERA_REQUIRE(reduction != Reduction::kNative,
                    ErrorCode::kInvalidConfig,
                    "{}: found \"native\", which is for several ranks on GPUs; this run is of {}: "
                    "leave it out",
                    placed(config, "comm.reduction"),
                    alone ? "one rank" : "ranks on the CPU");
    reduction = Reduction::kOrdered;
    return;
  }
  if (is_launched()) {
    TESSERA_REQUIRE(reduction != Reduction::kOrdered,
                    ErrorCode::kInvalidConfig,
                    "{}: found \"ordered\", which ranks on GPUs have as threads of one process: "
                    "leave it out, or start the run without MPI, with parallel.ranks",
                    placed(config, "comm.reduction"));
    reduction = Reduction::kNative;
    return;
  }
  if (reduction == Reduction::kOrdered) {
    return;
  }
  const std::string problem = native_problem(config, find_devices());
  TESSERA_REQUIRE(problem.empty() || !reduction,
                  ErrorCode::kInvalidConfig,
                  "{}: found \"native\", but {}",
                  placed(config, "comm.reduction"),
                  problem);
  if (!problem.empty()) {
    log_info(format("comm.reduction: ordered, since {}", problem));
  }
  reduction = problem.empty() ? Reduction::kNative : Reduction::kOrdered;
}

// The same for a run on GPUs that need not be here: one for each rank.
void plan_reduction(RunConfig& config) {
  if (!config.comm.reduction) {
    config.comm.reduction = *config.parallel.ranks > 1 ? Reduction::kNative : Reduction::kOrdered;
  }
}

}  // namespace

void resolve_device(RunConfig& config) {
  std::string& device = config.run.device;
  if (device == "cpu") {
    return;
  }
  const std::string problem = device_problem(config);
  if (device == "auto") {
    device = problem.empty() ? "cuda" : "cpu";
    log_info(problem.empty() ? "run.device = \"auto\": on the GPU"
                             : format("run.device = \"auto\": on the CPU, since {}", problem));
    return;
  }
  TESSERA_REQUIRE(problem.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found \"cuda\", but {}",
                  placed(config, "run.device"),
                  problem);
}

ModelDescription resolve_model(const RunConfig& config) {
  const ModelFamily& family = model_family(config.model.name);
  const ModelSection section = resolved_section(config);
  return with_adapters(family.describe(section), config, family.hugging_face_weights(section));
}

RunConfig resolve(RunConfig config, ConfigUse use) {
  config.model = resolved_section(config);
  fit_usual_warmup(config);
  validate(config, use);
  if (const auto adapters = resolve_model(config).adapters) {
    config.lora.alpha = adapters->alpha;
    config.lora.targets = adapters->targets;
  }
  return resolve_run(std::move(config), use);
}

RunConfig resolve_stored(std::string_view text) {
  RunConfig config = parse_run_config(text, "the checkpoint's config");
  config.run.device = "cpu";
  config.comm = {};
  if (config.model.rope_scaling == false) {
    config.model.rope_factor.reset();  // older runs might name one, of which nothing came
  }
  return resolve(std::move(config));
}

std::int64_t ranks_on_machine(const RunConfig& config) {
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  return launch ? launch->local_size : config.parallel.ranks.value_or(1);
}

std::int64_t nccl_reserve_bytes(const RunLayout& layout, bool overlap, std::int64_t num_channels) {
  // A group takes its buffers with the first operation: the second stream's not where it has none.
  const std::int64_t streams = overlap ? 2 : 1;
  // Gradients in a format of the wire are exchanged, and summed by each rank.
  const bool exchanges = !layout.wires.grad.formats.empty();
  const auto is_far = [&](const MeshAxis& axis) {
    return layout.mesh.levels.size() > 1 && axis.level == layout.mesh.levels.back();
  };
  std::int64_t bytes = kNcclBytes;
  for (const MeshAxis& axis : layout.mesh.axes) {
    bytes += streams * nccl_ring_bytes(axis.size);
    if (axis.group == AxisGroup::kContext && layout.context.kind == ContextKind::kUlysses) {
      bytes += (axis.size - 1) * nccl_peer_bytes(is_far(axis));
    }
    if (axis.group == AxisGroup::kContext && layout.context.kind == ContextKind::kRing) {
      // The neighbours: what no work hides goes on the stream that computes.
      bytes += streams * std::min<std::int64_t>(2, axis.size - 1) * nccl_peer_bytes(is_far(axis));
    }
    if (exchanges && (axis.group == AxisGroup::kData || axis.group == AxisGroup::kContext)) {
      bytes += streams * (axis.size - 1) * nccl_peer_bytes(is_far(axis));
    }
  }
  const auto pipeline =
      std::ranges::find(layout.mesh.axes, AxisGroup::kPipeline, &MeshAxis::group);  // innermost
  const bool channels_are_far = pipeline != layout.mesh.axes.end() && is_far(*pipeline);
  return bytes + num_channels * nccl_peer_bytes(channels_are_far);
}

std::int64_t device_memory_limit(const Devices& devices,
                                 std::int64_t ranks,
                                 std::int64_t nccl_bytes) {
  const bool native = nccl_bytes > 0;
  const std::int64_t reserve = kLibrariesReserveBytes + nccl_bytes;
  const auto num_devices = static_cast<std::int64_t>(devices.usable.size());
  TESSERA_REQUIRE(
      num_devices > 0, ErrorCode::kDeviceError, "there is no GPU any more: {}", devices.problem);
  std::int64_t limit = INT64_MAX;
  for (std::int64_t number = 0; number < std::min(ranks, num_devices); ++number) {
    // NCCL's ranks share none, and may each be shown another one.
    const std::int64_t sharing = native ? 1 : (ranks - number + num_devices - 1) / num_devices;
    const Device& device = devices.usable[static_cast<std::size_t>(number)];
    limit = std::min(limit, std::max<std::int64_t>(0, device.free_bytes - reserve) / sharing);
  }
  return limit;
}

std::int64_t memory_limit(const RunConfig& config,
                          const RunLayout& layout,
                          std::int64_t num_channels) {
  if (config.memory.limit_bytes > 0) {
    return config.memory.limit_bytes;
  }
  const std::int64_t ranks = ranks_on_machine(config);
  if (config.run.device != "cuda") {
    return free_memory_bytes() / ranks;
  }
  const bool native = config.comm.reduction == Reduction::kNative;
  return device_memory_limit(
      find_devices(),
      ranks,
      native ? nccl_reserve_bytes(layout, config.comm.overlap, num_channels) : 0);
}

RunConfig resolve_ranks(RunConfig config, ConfigUse use) {
  ParallelSection& parallel = config.parallel;
  if (!parallel.ranks) {
    const std::optional<MpiLaunch> launch = find_mpi_launch();
    parallel.ranks = launch ? launch->size : parallel.data.value_or(1) * parallel.ranks_of_data();
  }
  validate_degrees(config);
  parallel.data = *parallel.ranks / parallel.ranks_of_data();
  if (use == ConfigUse::kPlan && config.run.device == "cuda") {
    plan_reduction(config);
  } else {
    resolve_device(config);
    resolve_reduction(config);
  }
  if (config.run.threads == 0) {
    config.run.threads = std::max<std::int64_t>(1, usable_cores() / ranks_on_machine(config));
  }
  return config;
}

RunConfig resolve_run(RunConfig config, ConfigUse use) {
  config = resolve_ranks(std::move(config), use);
  fit_usual_warmup(config);
  validate_run(config, use);
  return config;
}

}  // namespace tessera
