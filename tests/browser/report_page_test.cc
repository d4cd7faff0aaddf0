// What `tessera report` writes, as Chromium shows it.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tests/browser/web_driver.h"
#include "tests/cli/process.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr const char* kConfig = R"([run]
dir = "runs/<b>bold</b>"
[model]
name = "llama3"
flavor = "debug"
[data]
files = ["<script>alert(1)</script>.txt"]
[train]
steps = 3000
[optimizer]
clip = 1.0
)";

constexpr std::int64_t kSteps = 3000;
constexpr std::int64_t kSpike = 1234;  // the one step with a gradient norm of 50
constexpr std::int64_t kLost = 2000;   // the one step that was not finite
constexpr std::int64_t kResumed = 1500;

json metrics_line(std::int64_t step) {
  const auto s = static_cast<double>(step);
  json line = {{"step", step},
               {"loss", 2.0 + 100.0 / (s + 9.0)},
               {"grad_norm", step == kSpike ? 50.0 : 0.5},
               {"lr", 0.001},
               {"tokens", step * 2048},
               {"step_seconds", 0.25},
               {"tokens_per_second", 8192.0},
               {"memory_bytes", std::int64_t{3} << 30},
               {"comm_bytes",
                {{"node", {{"state", 1024}, {"tensor", 0}, {"scalar", 0}}},
                 {"</script><b>", {{"state", 2048}, {"tensor", 0}, {"scalar", 0}}}}}};
  if (step == kLost) {
    line["loss"] = nullptr;
    line["grad_norm"] = nullptr;
  }
  return line;
}

json session_line(const char* event, std::int64_t step) {
  return {{"event", event},
          {"time", "2026-01-02T03:04:05Z"},
          {"step", step},
          {"stopped", false},
          {"parameters", 7087872},
          {"host", "<i>host</i>"},
          {"cpu", "Some Processor"},
          {"cores", 8},
          {"memory_bytes", std::int64_t{16} << 30}};
}

// One browser for all tests of this program.
class ReportPageTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!Browser::missing()) {
      files = std::make_unique<TestDirectory>();
      browser = std::make_unique<Browser>(files->path());
    }
  }

  static void TearDownTestSuite() {
    browser.reset();
    files.reset();
  }

  void SetUp() override {
    if (const auto missing = Browser::missing()) {
      GTEST_SKIP() << *missing;
    }
    ASSERT_TRUE(browser) << "the browser did not start";
  }

  // No test may leave a word on the console, such as an exception or a request that was refused.
  void TearDown() override {
    if (browser) {
      EXPECT_THAT(browser->console(), IsEmpty());
    }
  }

  static std::filesystem::path make_run(const std::string& name, std::int64_t num_steps) {
    const std::filesystem::path run = files->path() / name;
    std::filesystem::create_directories(run / "checkpoints" / "step-00003000");
    write_test_file(run / "checkpoints" / "step-00003000" / "manifest.json", "{}");
    write_test_file(run / "config.toml", kConfig);
    std::string lines;
    for (std::int64_t step = 1; step <= num_steps; ++step) {
      lines += metrics_line(step).dump() + "\n";
    }
    write_test_file(run / "metrics.jsonl", lines);
    write_test_file(run / "sessions.jsonl",
                    session_line("start", 0).dump() + "\n" +
                        session_line("start", kResumed).dump() + "\n" +
                        session_line("end", num_steps).dump() + "\n");
    return run;
  }

  static void open_report(const std::filesystem::path& run) {
    const std::filesystem::path page = files->path() / "report.html";
    const Outcome outcome =
        Process({built_program("tessera"), "report", run.string(), "-o", page.string()},
                files->path())
            .finish();
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    browser->open(page);
  }

  static json script(const std::string& body) { return browser->script(body); }

  static std::string text(const std::string& selector) {
    return script(format("return document.querySelector('{}').textContent", selector));
  }

  // The place of the middle of a chart's plot, scrolled into view: [x, y, width].
  static json middle_of(const std::string& chart) {
    return script(
        format("const svg = document.querySelector('#chart-{} svg');"
               "svg.scrollIntoView({{block: 'center'}});"
               "const box = svg.getBoundingClientRect();"
               "return [box.x + box.width / 2, box.y + box.height / 2, box.width]",
               chart));
  }

  static std::string line_of(const std::string& chart, const std::string& kind) {
    return script(format(
        "return document.querySelector('#chart-{} path.{}').getAttribute('d')", chart, kind));
  }

  static inline std::unique_ptr<TestDirectory> files;
  static inline std::unique_ptr<Browser> browser;
};

// Phones and desktops, by day and by night.
class ReportScreenTest : public ReportPageTest,
                         public testing::WithParamInterface<std::tuple<int, int, bool>> {};

INSTANTIATE_TEST_SUITE_P(Screens,
                         ReportScreenTest,
                         testing::Values(std::tuple(390, 844, false),
                                         std::tuple(390, 844, true),
                                         std::tuple(320, 568, false),
                                         std::tuple(1280, 900, false),
                                         std::tuple(1280, 900, true)));

TEST_P(ReportScreenTest, ShowsTheRun) {
  const auto [width, height, dark] = GetParam();
  browser->set_screen(width, height, dark);
  open_report(make_run("seven-seas", kSteps));
  EXPECT_EQ(script("return document.title"), "seven-seas · Tessera");
  EXPECT_EQ(text("h1"), "seven-seas");
  EXPECT_EQ(text("#status"), "Finished after step 3,000");
  EXPECT_EQ(text(".notices"), "\nLoss or gradient norm not finite at step 2,000: not applied.\n");
  EXPECT_EQ(script("return [...document.querySelectorAll('.chart h3')].map(e => e.textContent)"),
            json({"Loss",
                  "Gradient norm",
                  "Throughput",
                  "Memory of a rank",
                  "Learning rate",
                  "Sent by rank 0 in a step, by level"}));
  EXPECT_THAT(text(".tiles"), AllOf(HasSubstr("Steps3,000of 3,000"), HasSubstr("3.00 GiB")));
  EXPECT_THAT(
      text(".facts"),
      AllOf(HasSubstr("7,087,872"), HasSubstr("Some Processor"), HasSubstr("step-00003000")));
  EXPECT_THAT(text("#chart-loss .legend"),
              AllOf(HasSubstr("1 step not finite"), HasSubstr("resumed after step 1,500")));
  EXPECT_THAT(text("#chart-grad-norm .legend"), HasSubstr("clipped above 1"));
  // Every chart has a line that reaches from its left to its right end, in the window.
  EXPECT_EQ(script("return [...document.querySelectorAll('.plot svg')].filter(svg => {"
                   "  const line = svg.querySelector('path.raw').getBBox();"
                   "  return line.width < 0.7 * svg.clientWidth || svg.clientWidth < 220;"
                   "}).length"),
            0);
  EXPECT_EQ(script("return document.documentElement.scrollWidth"), width) << "nothing sticks out";
  EXPECT_EQ(script("return getComputedStyle(document.body).backgroundColor"),
            dark ? "rgb(16, 18, 22)" : "rgb(246, 246, 243)");
  EXPECT_EQ(script("return performance.getEntriesByType('resource').length"), 0)
      << "the page asks for nothing";
  // For the eyes of those who change the page.
  if (const char* directory = std::getenv("TESSERA_SCREENSHOTS")) {
    browser->screenshot(std::filesystem::path(directory) /
                        format("report-{}x{}-{}.png", width, height, dark ? "dark" : "light"));
  }
}

// WCAG 2.2, 1.4.3: text has a contrast of 4.5 to what it stands on.
TEST_P(ReportScreenTest, TextCanBeRead) {
  const auto [width, height, dark] = GetParam();
  browser->set_screen(width, height, dark);
  open_report(make_run("seven-seas", 100));
  EXPECT_EQ(
      script("const rgb = text => text.match(/[\\d.]+/g).map(Number);"
             "const light = text => rgb(text).slice(0, 3).map(c => c / 255)"
             "  .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)"
             "  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);"
             "const ground = e => { for (; e; e = e.parentElement) {"
             "  const color = getComputedStyle(e).backgroundColor;"
             "  if (rgb(color)[3] !== 0) return color; } };"
             "const bad = new Set(); let seen = 0;"
             "for (const e of document.querySelectorAll('body *')) {"
             "  if (!e.checkVisibility() || ![...e.childNodes].some("
             "      n => n.nodeType === 3 && n.data.trim())) continue;"
             "  seen += 1;"
             "  const style = getComputedStyle(e);"
             "  const a = light(e.closest('svg') ? style.fill : style.color);"
             "  const b = light(ground(e));"
             "  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);"
             "  if (ratio < 4.5) bad.add(e.tagName + '.' + e.className + ' ' + ratio.toFixed(2));"
             "}"
             "if (seen < 50) bad.add('saw ' + seen);"
             "return [...bad]"),
      json::array());
}

TEST_F(ReportPageTest, ThePointerReadsValues) {
  browser->set_screen(1280, 900, false);
  open_report(make_run("seven-seas", 101));
  const json place = middle_of("loss");
  EXPECT_TRUE(script("return document.querySelector('#chart-loss .tip').hidden"));
  browser->point(place[0].get<double>() + 22, place[1]);
  // The plot's middle is step 51: 58 px are left of it, 14 right.
  const std::string tip = text("#chart-loss .tip");
  EXPECT_THAT(tip, AllOf(HasSubstr("step 51"), HasSubstr("3.6667"), HasSubstr("smoothed")));
  EXPECT_EQ(text("#chart-loss .readout"), "step 51 3.6667");
  EXPECT_EQ(text("#chart-throughput .readout"), "step 51 8.192 k tok/s") << "all charts follow";
  EXPECT_EQ(text("#chart-memory .readout"), "step 51 3 GiB");
  EXPECT_TRUE(script("return document.querySelector('#chart-memory .tip').hidden"));
  browser->point(2, 2);
  EXPECT_TRUE(script("return document.querySelector('#chart-loss .tip').hidden"));
  EXPECT_EQ(text("#chart-loss .readout"), "step 101 2.9091") << "the last one";
}

TEST_F(ReportPageTest, TheTooltipStaysInThePage) {
  browser->set_screen(320, 568, false);
  open_report(make_run("seven-seas", 101));
  const json place = middle_of("loss");
  const double half = place[2].get<double>() / 2;
  for (const double at : {-half + 2, -half / 2, 0.0, half / 2, half - 2}) {
    browser->point(place[0].get<double>() + at, place[1]);
    EXPECT_EQ(script("const tip = document.querySelector('#chart-loss .tip');"
                     "const box = tip.getBoundingClientRect();"
                     "return [tip.hidden, box.left >= 0 && box.right <= innerWidth]"),
              json({false, true}))
        << at;
  }
}

TEST_F(ReportPageTest, KeysReadValues) {
  browser->set_screen(1280, 900, false);
  open_report(make_run("seven-seas", 101));
  const std::string tab = "\uE004";
  const std::string left = "\uE012";
  const std::string right = "\uE014";
  const std::string home = "\uE011";
  const std::string end = "\uE010";
  const std::string page_up = "\uE00E";
  // The page's controls come first, in order.
  const auto focus = [] {
    return script("const e = document.activeElement; return e.id || e.getAttribute('aria-label')");
  };
  browser->type({tab});
  EXPECT_EQ(focus(), "smoothing");
  browser->type({tab});
  EXPECT_EQ(focus(), "log-scale");
  browser->type({tab});
  EXPECT_EQ(focus(), "Loss over steps");
  const auto said = [] {
    return script("return document.activeElement.getAttribute('aria-valuetext')")
        .get<std::string>();
  };
  EXPECT_THAT(said(), HasSubstr("step 101: 2.9091, smoothed "));
  browser->type({left, left});
  EXPECT_THAT(said(), HasSubstr("step 99: 2.9259"));
  browser->type({right});
  EXPECT_THAT(said(), HasSubstr("step 100: "));
  browser->type({home});
  EXPECT_THAT(said(), HasSubstr("step 1: 12,"));
  browser->type({left, page_up});
  EXPECT_THAT(said(), HasSubstr("step 6: "));
  browser->type({end});
  EXPECT_THAT(said(), HasSubstr("step 101: "));
  EXPECT_THAT(text("#chart-loss .tip"), HasSubstr("step 101"));
  EXPECT_EQ(script("return document.querySelector('#chart-loss svg').getAttribute('role')"),
            "slider");
}

TEST_F(ReportPageTest, SmoothingAndLogScale) {
  browser->set_screen(1280, 900, false);
  open_report(make_run("seven-seas", kSteps));
  const std::string raw = line_of("grad-norm", "raw");
  const std::string smooth = line_of("grad-norm", "smooth");
  const auto set = [](const std::string& value) {
    script(
        format("const e = document.getElementById('smoothing'); e.value = '{}';"
               "e.dispatchEvent(new Event('input'))",
               value));
  };
  set("0.9");
  EXPECT_EQ(text("#smoothing-value"), "0.90");
  EXPECT_NE(line_of("grad-norm", "smooth"), smooth);
  EXPECT_EQ(line_of("grad-norm", "raw"), raw);
  set("0");
  EXPECT_EQ(script("return document.querySelectorAll('path.smooth').length"), 0);
  EXPECT_EQ(line_of("grad-norm", "raw"), raw);
  script("document.getElementById('log-scale').click()");
  EXPECT_NE(line_of("grad-norm", "raw"), raw);
  EXPECT_THAT(line_of("grad-norm", "raw"), Not(HasSubstr("NaN")));
  // 0.5 lies at the foot of the linear chart, and a good way up to 50 is the 5 of the log scale.
  EXPECT_THAT(text("#chart-grad-norm svg"), HasSubstr("5"));
  script("document.getElementById('log-scale').click()");
  EXPECT_EQ(line_of("grad-norm", "raw"), raw);
}

TEST_F(ReportPageTest, TheSpikeOfOneStepIsThere) {
  browser->set_screen(390, 844, false);
  open_report(make_run("seven-seas", kSteps));
  EXPECT_EQ(script("const data = JSON.parse(document.getElementById('data').textContent);"
                   "const curve = data.charts[1].series[0];"
                   "const at = curve.y.indexOf(50);"
                   "return [curve.x[at], curve.y.length <= 2002, curve.not_finite]"),
            json({kSpike, true, {kLost}}));
  EXPECT_EQ(script("return document.querySelectorAll('#chart-grad-norm .not-finite').length"), 1);
  EXPECT_EQ(script("const d = document.querySelector('#chart-loss path.raw').getAttribute('d');"
                   "return d.split('M').length - 1"),
            2)
      << "the line is broken once";
}

TEST_F(ReportPageTest, TheTableHasTheNumbers) {
  browser->set_screen(390, 844, false);
  open_report(make_run("seven-seas", kSteps));
  EXPECT_EQ(script("return document.querySelectorAll('#numbers tbody tr').length"), 25);
  EXPECT_EQ(text("#numbers tbody tr"), "1120.50.0012,0480.258,1923.00 GiB");
  EXPECT_EQ(script("return document.querySelectorAll('#numbers [scope]').length"), 25 + 8);
  script("document.querySelector('#numbers summary').click()");
  EXPECT_EQ(script("return document.documentElement.scrollWidth"), 390);
  EXPECT_EQ(text("#numbers caption"), "25 of 3,000 steps; metrics.jsonl has all");
}

TEST_F(ReportPageTest, NothingOfARunIsHtml) {
  browser->set_screen(1280, 900, false);
  const std::string name = R"(<img src=x onerror=document.title='taken'>&amp;"' ')";
  open_report(make_run(name, 5));
  EXPECT_EQ(text("h1"), name);
  EXPECT_EQ(script("return document.title"), name + " · Tessera");
  EXPECT_EQ(script("return document.querySelectorAll('img, i, body script:not(#data)').length"), 1)
      << "the page's own script";
  EXPECT_THAT(text(".facts"),
              AllOf(HasSubstr("<script>alert(1)</script>.txt"), HasSubstr("<i>host</i>")));
  EXPECT_THAT(text("#chart-traffic .legend"), HasSubstr("</script><b>"));
}

TEST_F(ReportPageTest, RunsOfFewSteps) {
  browser->set_screen(390, 844, true);
  open_report(make_run("one", 1));
  EXPECT_EQ(text("#chart-loss .readout"), "step 1 12");
  EXPECT_EQ(script("return document.querySelectorAll('#chart-loss circle').length"), 1);
  EXPECT_THAT(script("return document.body.innerHTML").get<std::string>(), Not(HasSubstr("NaN")));

  open_report(make_run("none", 0));
  EXPECT_THAT(text(".notices"), HasSubstr("No step has ended yet"));
  EXPECT_EQ(script("return document.querySelectorAll('.chart, #data').length"), 0);
}

TEST_F(ReportPageTest, ARunThatFailed) {
  browser->set_screen(390, 844, false);
  const std::filesystem::path run = make_run("failed", 3);
  json line = metrics_line(3);
  std::string lines;
  for (const std::int64_t step : {3, 4, 7}) {
    line["step"] = step;
    line["loss"] = nullptr;
    line["grad_norm"] = nullptr;
    lines += line.dump() + "\n";
  }
  write_test_file(run / "metrics.jsonl", lines);
  write_test_file(run / "exit-0.json",
                  R"({"rank":0,"exit_code":1,"error":"diverged","message":"no <good>","step":7})");
  open_report(run);
  EXPECT_EQ(text("#status"), "Failed: 1 rank");
  EXPECT_THAT(text(".notices"),
              AllOf(HasSubstr("rank 0 failed after step 7 with exit code 1 (diverged): no <good>"),
                    HasSubstr("no lines of steps 1 to 2, 5 to 6."),
                    HasSubstr("not finite at steps 3, 4, 7")));
  EXPECT_EQ(text("#chart-loss .readout"), "no finite value");
  EXPECT_EQ(script("return document.querySelectorAll('#chart-loss .not-finite').length"), 3);
}

}  // namespace
}  // namespace tessera
