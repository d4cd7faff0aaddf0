#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/base/random.h"
#include "tessera/base/test_directory.h"
#include "tessera/config/config.h"
#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/planner/plan_choice.h"
#include "tessera/planner/space.h"

namespace tessera {

// A small model to be trained on a small cluster, both drawn: devices of different speed and
// memory, levels of different bandwidth.
struct DrawnRun {
  explicit DrawnRun(std::uint64_t seed, std::int64_t ranks = 4, std::int64_t most_batch = 8) {
    const std::uint64_t key = random_key(seed, "drawn run");
    std::uint64_t index = 0;
    const auto draw = [&](double low, double high) {
      return low + (high - low) * uniform(key, index++);
    };
    const auto one_of = [&](std::vector<std::int64_t> values) {
      return values[static_cast<std::size_t>(draw(0.0, static_cast<double>(values.size())))];
    };
    // What devices have is shared with what a library takes for each group and channel.
    const bool limits_devices = seed % 2 == 1;
    cluster.name = "drawn";
    cluster.device = {
        .name = "device",
        .memory_bytes = static_cast<std::int64_t>(limits_devices ? draw(2.5e9, 8e9) : 80e9),
        .memory_bandwidth = draw(1e11, 1e12),
        .peak_flops = {.f32 = draw(1e12, 1e13), .bf16 = draw(1e13, 1e14)},
        .host_link = 1e10};
    const std::int64_t inner = one_of({2, ranks});
    cluster.levels = {{.name = "node",
                       .size = inner,
                       .bandwidth = draw(1e10, 2e11),
                       .latency = draw(1e-6, 5e-6)}};
    if (inner < ranks) {
      cluster.levels.push_back({.name = "cluster",
                                .size = ranks / inner,
                                .bandwidth = draw(1e9, 1e11),
                                .latency = draw(1e-6, 2e-5),
                                .shared = draw(0.0, 1.0) < 0.5});
    }
    cluster.source = (directory.path() / "cluster.toml").string();
    write_test_file(cluster.source, to_toml(cluster));
    const std::int64_t layers = one_of({4, 5, 6});
    const std::int64_t dim = one_of({128, 256});
    const std::int64_t ffn = one_of({256, 512});
    const std::int64_t vocab = one_of({512, 4096});
    // Of weights, gradients, masters and moments in 16 bytes, from less than all on one device.
    const auto weights = static_cast<double>(2 * vocab * dim + layers * dim * (3 * ffn + 3 * dim));
    const auto limit = static_cast<std::int64_t>(16.0 * weights * draw(0.6, 1.5) + 3e7);
    for (const std::string& text : {std::string("--model.name=llama3"),
                                    format("--model.layers={}", layers),
                                    format("--model.dim={}", dim),
                                    std::string("--model.heads=4"),
                                    std::string("--model.kv_heads=2"),
                                    format("--model.ffn={}", ffn),
                                    format("--model.vocab={}", vocab),
                                    std::string("--train.dtype=bf16"),
                                    format("--train.global_batch={}", one_of({4, most_batch})),
                                    format("--data.sequence_length={}", one_of({64, 256})),
                                    format("--parallel.ranks={}", ranks),
                                    format("--memory.limit_bytes={}", limits_devices ? 0 : limit),
                                    "--cluster.file=" + cluster.source}) {
      apply_override(config, text);
    }
  }

  std::vector<PlanChoice> space(const AllowedChoices& allowed = {}) const {
    const std::int64_t ranks = *config.parallel.ranks;
    return plan_space(filled_in(config, cluster, ranks), cluster, ranks, allowed);
  }

  TestDirectory directory;
  Cluster cluster;
  RunConfig config;
};

}  // namespace tessera
