#include "tessera/launch/rank_backend.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/devices.h"
#include "tessera/base/format.h"
#include "tessera/base/machine.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/config/run_config.h"
#include "tessera/launch/rank_launch.h"

namespace tessera {
namespace {

constexpr StreamId kComputeStream = StreamId{0};
constexpr StreamId kCommStream = StreamId{1};
constexpr std::int64_t kComputeGeneration = 0;
constexpr std::int64_t kCommGeneration = 1;
constexpr std::int64_t kMeetingGeneration = 4;  // launch/rank_launch.cc has 2 and 3
constexpr std::int64_t kFurtherGeneration = 5;  // of stream 0, if it had them

CommunicatorOf along(const AxisCommunicators& communicators) {
  return [&](std::string_view axis, TrafficClass traffic_class) -> Communicator& {
    return communicators.along(axis, traffic_class);
  };
}

ChannelOf channels(AxisCommunicators& communicators, const Mover& mover) {
  return [&](const AxisSizes& axes, const ChannelPlaces& places, TrafficClass traffic_class)
             -> Channel& { return communicators.channel(axes, places, traffic_class, mover); };
}

bool is_native(const RunConfig& config) {
  return config.comm.reduction == Reduction::kNative;
}

// A run that goes on computes with the algorithms that it began with; others take what is known.
std::vector<std::filesystem::path> algorithm_files(const RunConfig& config) {
  std::vector<std::filesystem::path> files = {std::filesystem::path(config.run.dir) / "gemms.txt"};
  if (const auto cache = user_cache_directory()) {
    files.push_back(*cache / "gemms.txt");
  }
  return files;
}

bool has_devices_of_their_own(const World& world, const RunConfig& config) {
  return is_native(config) || std::cmp_less_equal(world.size(), find_devices().usable.size());
}

// Ranks that talk by a library of their devices may be processes.
std::unique_ptr<DeviceBackend> open_device(const World& world, const RunConfig& config) {
  if (config.run.device != "cuda") {
    return nullptr;
  }
  DeviceOptions options = {.may_record = config.run.cuda_graphs, .tf32 = config.train.tf32};
  // Who shares a device would time what others do.
  if (config.run.time_gemms && (world.size() == 1 || has_devices_of_their_own(world, config))) {
    options.shares_choices = world.size() > 1;
    if (world.rank() == 0) {
      options.algorithm_files = algorithm_files(config);
    }
  }
  if (!is_native(config)) {
    return make_device_backend(world.rank(), world.size(), options);
  }
  options.shared = Shared::kNothing;
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  return make_device_backend(launch ? launch->local_rank : world.rank(),
                             launch ? launch->local_size : world.size(),
                             options);
}

NcclOptions native_options(DeviceBackend& device, const WorldOptions& options) {
  return {.device = device.ordinal(),
          .world = options,
          .stream_of = [&device](const Mover& mover) { return device.native_stream(mover); },
          .drop_recordings = [&device] { device.drop_recordings(); }};
}

const Mover& mover_of(const DeviceBackend* device, StreamId stream) {
  return device == nullptr ? host_mover() : device->mover(stream);
}

}  // namespace

std::unique_ptr<Backend> make_run_backend(const std::string& device, int threads) {
  if (device != "cuda") {
    return make_cpu_backend(threads);
  }
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  return make_device_backend(launch ? launch->local_rank : 0,
                             launch ? launch->local_size : 1,
                             {.shared = Shared::kNothing});
}

RankBackend::RankBackend(World& world, const Mesh& mesh, const RunConfig& config, const Wrap& wrap)
    : RankBackend(world,
                  mesh,
                  static_cast<int>(config.run.threads),
                  open_device(world, config),
                  is_native(config) ? join_nccl_world : JoinNative(),
                  world_options(config)) {
  if (cpu_ && wrap) {
    cpu_ = wrap(std::move(cpu_));
  }
}

RankBackend::RankBackend(World& world, const Mesh& mesh, int threads)
    : RankBackend(world, mesh, threads, nullptr) {}

RankBackend::RankBackend(World& world,
                         const Mesh& mesh,
                         int threads,
                         std::unique_ptr<DeviceBackend> device,
                         const JoinNative& join,
                         const WorldOptions& options)
    : device_(std::move(device)),
      native_(join != nullptr ? join(world, native_options(*device_, options)) : nullptr),
      compute_(native_ ? *native_ : world,
               mesh,
               kComputeGeneration,
               mover_of(device_.get(), kComputeStream)),
      comm_(
          native_ ? *native_ : world, mesh, kCommGeneration, mover_of(device_.get(), kCommStream)) {
  const auto abort = [this, &world](std::string_view reason) {
    world.abort(format("rank {} failed: {}", world.rank(), reason));
    if (native_) {
      native_->stop();
    }
  };
  if (device_ == nullptr) {
    cpu_ = make_cpu_backend(
        threads,
        along(compute_),
        {.communicator_of = along(comm_),
         .of_further =
             [this, &world, mesh](StreamId stream) { return along(further(stream, world, mesh)); },
         .channel_of = channels(comm_, host_mover()),
         .abort = abort,
         .world = &world});
    return;
  }
  device_->set_communicators(kComputeStream, along(compute_));
  device_->set_communicators(kCommStream, along(comm_));
  device_->set_channels(world, [this](const Mover& mover) { return channels(comm_, mover); });
  device_->set_abort(abort);
  if (native_) {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
    meeting_ = world.group(ranks, kMeetingGeneration);
    device_->set_native({.wait =
                             [this] {
                               static constexpr std::array kGenerations = {kComputeGeneration,
                                                                           kCommGeneration};
                               native_->synchronize(kGenerations);
                             },
                         .watch = [this](const auto& is_done) { native_->watch(is_done); },
                         .meet = [this] { meeting_->barrier(); },
                         .sent = [this] { return sent(); },
                         .add_sent = [this](const Traffic& more) { compute_.add_sent(more); }});
  }
}

void RankBackend::settle_products(ProductChoices which, bool leads, const GatherTexts& from_all) {
  if (!settles_products()) {
    return;
  }
  const bool speaks = leads || which == ProductChoices::kTimed;
  device_->take_product_choices(which, from_all(speaks ? device_->product_choices(which) : ""));
}

AxisCommunicators& RankBackend::further(StreamId stream, World& world, const Mesh& mesh) {
  const std::scoped_lock lock(further_mutex_);
  std::unique_ptr<AxisCommunicators>& made = further_[stream];
  if (!made) {
    made = std::make_unique<AxisCommunicators>(
        world, mesh, kFurtherGeneration + stream.index, host_mover());
  }
  return *made;
}

Traffic RankBackend::sent() const {
  Traffic sent = compute_.sent();
  add(sent, comm_.sent());
  const std::scoped_lock lock(further_mutex_);
  for (const auto& [stream, communicators] : further_) {
    add(sent, communicators->sent());
  }
  return sent;
}

}  // namespace tessera
