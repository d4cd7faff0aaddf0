#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/train/pipeline_waiting.h"

namespace tessera {

// "<run_dir>/sessions.jsonl": when, where and how far a run was trained, a line at the start of
// each session and one at its end. A session that fails or is killed has no end.

struct SessionStart {
  std::int64_t step = 0;        // the last one before it; 0: a new run
  std::int64_t parameters = 0;  // of the model
  std::string validation = {};  // describe_validation(); empty: the run does not validate
  std::optional<double> predicted_step = {};  // seconds; none: nothing was predicted
  std::string constants = {};                 // by what: constants_text() of the cluster
};

struct SessionEnd {
  std::int64_t step = 0;  // the last one
  bool stopped = false;   // by a signal, before the run's end
  std::vector<PipelineWaiting> pipeline = {};
};

// Append a line with the time and, for a start, this machine. Errors: kDeviceError naming the path.
void log_session_start(const std::filesystem::path& run_dir, const SessionStart& start);
void log_session_end(const std::filesystem::path& run_dir, const SessionEnd& end);

// A session as the file tells it.
struct Session {
  SessionStart start = {};
  std::string started = {};  // "2026-01-31T23:59:59Z"
  std::string host = {};
  std::string cpu = {};
  std::int64_t cores = 0;
  std::int64_t memory_bytes = 0;  // that this process could use
  std::optional<SessionEnd> end = {};
  std::string ended = {};
};

// Oldest first; none where there is no file. Lines that a kill tore, or that are none of ours, are
// passed over. Errors: kInvalidData where the file cannot be read.
std::vector<Session> read_sessions(const std::filesystem::path& run_dir);

// The step behind which all sessions that validated did so on the data that `validation` describes;
// sessions of versions that did not say count as such.
std::int64_t validated_alike_since(const std::vector<Session>& sessions,
                                   const std::string& validation);

}  // namespace tessera
