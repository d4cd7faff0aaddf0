#include "tessera/base/log.h"

#include <memory>
#include <string>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "tessera/base/text.h"

namespace tessera {
namespace {

spdlog::logger& logger() {
  // spdlog owns its sinks by shared_ptr; this is the process's one stderr.
  static const auto kLogger = [] {
    auto created = std::make_shared<spdlog::logger>(
        "tessera", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%^%l%$: %v");
    return created;
  }();
  return *kLogger;
}

}  // namespace

void log_info(std::string_view message) {
  logger().info("{}", printable(message));
}

void log_warning(std::string_view message) {
  logger().warn("{}", printable(message));
}

void log_error(std::string_view message) {
  logger().error("{}", printable(message));
}

void silence_info() {
  logger().set_level(spdlog::level::warn);
}

bool is_info_silenced() {
  return !logger().should_log(spdlog::level::info);
}

void silence_errors() {
  logger().set_level(spdlog::level::off);
}

}  // namespace tessera
