#include "tessera/calibrate/calibrate.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ops/op.h"
#include "tessera/simulate/timed_program.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

// A machine of which all is known.
Cluster known_machine() {
  Cluster machine = {
      .name = "known",
      .device = {.name = "core",
                 .memory_bandwidth = 20e9,
                 .peak_flops = {.f32 = 100e9, .bf16 = 150e9}},
      .levels = {{.name = "cache",
                  .size = 4,
                  .bandwidth = 10e9,
                  .latency = 7e-6,
                  .half = 200e3,
                  .efficiency = 0.7}},
      .host = {.cores = 4, .memory_bandwidth = 50e9, .cache_bytes = 8e6, .cache_bandwidth = 120e9}};
  machine.device.curve = {.matmul = {.f32 = 0.85, .bf16 = 0.7},
                          .k_half = 40.0,
                          .stream = 0.6,
                          .kernel = 4e-6,
                          .attention = {.forward = 0.4, .backward = 0.8, .half = 90.0},
                          .vector = 0.03};
  return machine;
}

// What it takes, by the formulas.
MachineMeasures measures_of(const Cluster& machine) {
  MachineMeasures measures = {.cores = machine.host.cores,
                              .core_bandwidth = machine.device.memory_bandwidth,
                              .host_bandwidth = machine.host.memory_bandwidth,
                              .cache_bytes = machine.host.cache_bytes,
                              .cache_bandwidth = machine.host.cache_bandwidth};
  const DeviceTime time(device_of(machine, machine.host.cores), machine.name);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const MachineKernel& kernel : machine_kernels(dtype)) {
      const Works works = work(*kernel.op, kernel.operands);
      // Far below or far above what the cache holds.
      const double bytes = kernel.operands[0].num_bytes() < 1000000 ? 1e6 : 100e6;
      measures.kernels.push_back({.family = kernel.family,
                                  .dtype = dtype,
                                  .what = kernel.what,
                                  .works = works,
                                  .bytes = bytes,
                                  .seconds = time.seconds(works, bytes < 8e6 ? 1.0 : 0.0)});
    }
  }
  for (const double bytes : {4e3, 64e3, 1e6, 30e6}) {
    LegWork leg = {.axis = "",
                   .kind = CollectiveKind::kAllGather,
                   .ranks = 4,
                   .bytes = bytes,
                   .sent = 0.75 * bytes};
    const LegTime taken = leg_time(machine.levels[0], leg, CollectiveStyle::kOwn);
    measures.legs.push_back({.work = leg, .seconds = taken.latency + taken.moving});
  }
  return measures;
}

TEST(FitMachine, FindsWhatMadeTheTimes) {
  const Cluster machine = known_machine();
  Cluster unknown = {.name = "here", .device = {.name = "core"}, .levels = {{"cache", 4}}};
  const FittedMachine fitted = fit_machine(unknown, measures_of(machine));
  for (const Residual& residual : fitted.residuals) {
    EXPECT_LT(residual.errors.mean, 0.01) << residual.of;
  }
  ASSERT_EQ(fitted.residuals.size(), 7);
  const DeviceCurve& curve = *fitted.cluster.device.curve;
  EXPECT_NEAR(curve.stream, 0.6, 0.006);
  EXPECT_NEAR(curve.kernel, 4e-6, 4e-7);
  EXPECT_NEAR(curve.matmul.f32 * fitted.cluster.device.peak_flops.f32, 85e9, 1e9);
  EXPECT_NEAR(curve.matmul.bf16 * fitted.cluster.device.peak_flops.bf16, 105e9, 1e9);
  EXPECT_NEAR(fitted.cluster.levels[0].latency, 7e-6, 3e-7);
  EXPECT_EQ(fitted.cluster.levels[0].size, 4);
  // What it writes is a cluster file.
  const std::string text = to_toml(fitted.cluster);
  EXPECT_EQ(to_toml(parse_cluster(text, "written")), text);
}

TEST(FitMachine, SharesAreAtMostAll) {
  MachineMeasures measures = measures_of(known_machine());
  for (MeasuredKernel& kernel : measures.kernels) {
    kernel.seconds /= 3.0;  // faster than memory allows
  }
  const Cluster cluster =
      fit_machine({.name = "here", .device = {.name = "core"}, .levels = {{"cache", 4}}}, measures)
          .cluster;
  EXPECT_LE(cluster.device.curve->stream, 1.0);
  EXPECT_NO_THROW(parse_cluster(to_toml(cluster), "written"));
}

std::string refusal(const Calibration& calibration) {
  try {
    require_good(calibration);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeviceError);
    return error.message();
  }
  return "";
}

TEST(Calibration, OfABusyMachineIsRefused) {
  Calibration calibration = {.machine = {.cluster = known_machine(),
                                         .residuals = {{.of = "streams in f32",
                                                        .num = 3,
                                                        .errors = {.mean = 0.1},
                                                        .worst = "sum of 3 rows"}}},
                             .spread = 0.01,
                             .rounds = 5};
  EXPECT_EQ(refusal(calibration), "");
  calibration.spread = 0.3;
  EXPECT_THAT(refusal(calibration), HasSubstr("30.0 % from round to round, expected at most"));
  calibration.spread = 0.01;
  calibration.machine.residuals[0].errors.mean = 0.4;
  EXPECT_THAT(refusal(calibration), HasSubstr("streams in f32: the fitted curve is 40.0 % off"));
  EXPECT_THAT(refusal(calibration), HasSubstr("sum of 3 rows"));
}

}  // namespace
}  // namespace tessera
