#include "tessera/simulate/trace_picture.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kMostBytes = 200'000;

// A rank's step of 1200 ticks, one for each pixel.
StepTrace step_of_1200() {
  StepTrace trace;
  trace.step = 1200;
  trace.names = {"forward", "gemm"};
  trace.places = {{{.microbatch = 7, .op = 1, .action = Action::kForward},
                   {.microbatch = 7, .op = 1, .action = Action::kBackward}}};
  trace.processes = {
      {.name = "rank 0 x4",
       .threads = {{.name = "compute <1>",
                    .spans = {{.begin = 0, .end = 600, .step = 0, .kind = TraceKind::kProduct},
                              {.begin = 900, .end = 1200, .step = 1, .kind = TraceKind::kStream}}},
                   {.name = "comm",
                    .spans = {{.begin = 100,
                               .end = 300,
                               .step = 0,
                               .kind = TraceKind::kCollective,
                               .part = SpanKind::kAway},
                              {.begin = 300,
                               .end = 400,
                               .step = 0,
                               .kind = TraceKind::kCollective,
                               .part = SpanKind::kMoving}}}},
       .counters = {{.name = "memory",
                     .unit = "bytes",
                     .points = {{.at = 0, .value = 1 << 20}, {.at = 600, .value = 3 << 20}}}}}};
  return trace;
}

TEST(TracePicture, DrawsWhatStreamsDo) {
  const std::string svg = draw_trace(step_of_1200(), 4 << 20);
  EXPECT_THAT(svg,
              AllOf(HasSubstr("<path fill=\"#2f6fb5\" d=\"M0 0h600v16h-600z\"/>"
                              "<path fill=\"#8a8f98\" d=\"M900 0h300v16h-300z\"/>"
                              "<path fill=\"url(#waiting)\" d=\"M600 0h300v16h-300z\"/>"),
                    HasSubstr("<path fill=\"#c2571a\" d=\"M300 0h100v16h-100z\"/>"
                              "<path fill=\"url(#waiting)\" d=\"M100 0h200v16h-200z\"/>"),
                    HasSubstr("<text x=\"300.0\" y=\"10\">7</text>"),
                    HasSubstr("<text x=\"1050.0\" y=\"10\">7</text>"),
                    HasSubstr(">rank 0 x4, compute &lt;1&gt;</text>"),
                    HasSubstr(">rank 0 x4, comm</text>")));
  // A quarter, then three of four MiB.
  EXPECT_THAT(svg,
              AllOf(HasSubstr("d=\"M0 120H0V90.0H600V30.0H1200V120z\""),
                    HasSubstr("d=\"M0 0.0H1200\""),
                    HasSubstr(">at most 3.00 MiB</text>"),
                    HasSubstr(">limit 4.00 MiB</text>")));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(draw_trace(step_of_1200(), 0), Not(HasSubstr("limit")));
}

// Of a pixel what most of it is.
TEST(TracePicture, MergesWhatIsNarrowerThanAPixel) {
  StepTrace trace = step_of_1200();
  trace.step = 12'000;
  trace.processes[0].threads.resize(1);
  std::vector<TraceSpan>& spans = trace.processes[0].threads[0].spans;
  spans.clear();
  for (Ticks at = 0; at < trace.step; at += 10) {
    spans.push_back({.begin = at, .end = at + 6, .kind = TraceKind::kProduct});
    spans.push_back({.begin = at + 6, .end = at + 10, .kind = TraceKind::kAttention});
  }
  EXPECT_THAT(draw_trace(trace, 0),
              AllOf(HasSubstr("<path fill=\"#2f6fb5\" d=\"M0 0h1200v16h-1200z\"/>"),
                    Not(HasSubstr("<path fill=\"#7a4fb0\""))));
}

// Whatever the step.
TEST(TracePicture, HasAtMostSoManyBytes) {
  for (const std::size_t num_processes : {1, 16, 60, 1000}) {
    StepTrace trace = step_of_1200();
    trace.step = 200'000;
    trace.places[0].clear();
    std::vector<TraceSpan> spans;
    for (Ticks at = 0; at < 20'000; ++at) {
      trace.places[0].push_back({.microbatch = static_cast<std::int32_t>(at / 100)});
      spans.push_back({.begin = 10 * at,
                       .end = 10 * at + 8 + at % 3,
                       .step = static_cast<StepIndex>(at),
                       .kind = static_cast<TraceKind>(at / 27 % 6)});
    }
    TraceProcess process = trace.processes[0];
    process.threads[0].spans = spans;
    process.threads[1].spans = spans;
    process.threads.resize(num_processes > 100 ? 2 : 3, process.threads[1]);
    process.name = std::string(100, 'n');
    trace.processes.assign(num_processes, process);
    const std::string svg = draw_trace(trace, 1 << 20);
    EXPECT_LE(svg.size(), kMostBytes);
    EXPECT_GT(svg.size(), kMostBytes / 20);
    EXPECT_TRUE(svg.ends_with("</svg>\n"));
    EXPECT_EQ(svg.find("920 more kinds of ranks are not drawn") != std::string::npos,
              num_processes == 1000);
  }
}

TEST(TracePicture, OfNothingIsAnImage) {
  EXPECT_THAT(draw_trace({}, 0), HasSubstr("step of 0 s"));
}

}  // namespace
}  // namespace tessera
