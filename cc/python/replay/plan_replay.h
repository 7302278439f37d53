// A plan carried out again: what the executor does for every instruction of every step.
//
// Purpose: a step of a training loop is the same few hundred calls of compiled functions each time,
//   with the same slots. In Python what surrounds each call takes longer than many of the calls.
// Model: the executor (coop_jax/_src/execution/executor.py) appends instructions once, in order;
// Run carries
//   them out over a list of values, and returns where it meets one that is the executor's: the
//   first launch of an executable, whatever is not of every day. Arrays that a plan is done with
//   are kept in cells, one for each place and kind that is written, and donated to what is written
//   there next: to import a slot anew would take longer than all else. They are never read.
// Invariants: a cell's array lies at the cell's offset; nothing is written where the user holds
//   memory. When an instruction raises, the values are as it found them.
// Thread rule: under the interpreter lock, one Run at a time.
// Complexity: O(operands + results) an instruction, beyond the launch.
// Source: paper section 4 (the executor in the host framework).

#ifndef COOP_PYTHON_REPLAY_PLAN_REPLAY_H_
#define COOP_PYTHON_REPLAY_PLAN_REPLAY_H_

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/python/guard/call_guard.h"
#include "cc/python/memory/pool_memory.h"
#include "cc/python/replay/argument_reader.h"

namespace coop::python {

class Replay {
 public:
  // `load`: called with a capsule and `load_arguments`, imports it. `reader`: an ArgumentReader.
  // The user may delete any array that JAX lists as alive. `wait`: waits until an array is there,
  // and so all that the same launch made; None where a launch is done when it returns. `ordered`:
  // each launch begins when those before it are done, so that only the last is waited for: what is
  // written over is read before, as in XLA's own allocator of such a device.
  Replay(nanobind::object pool, nanobind::object load, nanobind::tuple load_arguments,
         nanobind::object reader, nanobind::object wait, bool ordered);

  // A launch: call(*slots, *operands), once it is made ready.
  struct Launch {
    nanobind::object call;
    std::vector<int32_t> slots;  // cells
    std::vector<int32_t> operands;
    std::vector<std::pair<int32_t, int32_t>> results;  // (value, kNone: scratch; cell, kNone: none)
    std::vector<int64_t> overwritten;                  // offsets, of the results after the slots
    std::vector<int64_t> reclaimed;                    // of those, what nobody holds any more
    std::vector<std::pair<int64_t, int64_t>> emptied;  // (offset, bytes) for XLA's workspace
    std::vector<int32_t> gone;                         // values that it took the memory of
    bool recompute = false;
    bool consumes_input = false;
  };

  // The number of the cell of a place and a kind of array (a SlotSpec).
  int32_t AddCell(int64_t offset, nanobind::object spec);
  void AddLaunch(Launch launch);
  // A value becomes an array that reads what lies in a cell's place.
  void AddView(int32_t value, int32_t cell);
  // (value, cell that keeps its array or kNone)
  void AddForget(std::vector<std::pair<int32_t, int32_t>> values);
  // An instruction that is always the executor's.
  void AddOther();

  // From now on the launch of that number is carried out here.
  void MakeReady(size_t instruction);
  // Carries out instructions from `begin` on; returns the number of the first that is the
  // executor's, or how many there are. `values`: a list, changed. `interrupts`: of the call;
  // checked before each launch until a donated array of the user is gone, and told that.
  // `misplaced`: called with an instruction and its results where they do not lie as they should;
  // returns those to keep. `annotate`: None, or called with the number of each launch; returns a
  // context manager to be in meanwhile, or None.
  size_t Run(nanobind::list values, size_t begin, Interrupts& interrupts,
             nanobind::handle misplaced, nanobind::handle annotate);

  // Where launches are ordered these say when they were enqueued, not what they took; only their
  // sum means something.
  double compute_seconds = 0;
  double recompute_seconds = 0;
  // From the next Run on, notes when launches begin, until that is taken.
  void TimeLaunches();
  // Seconds of the steady clock, for each instruction; NaN for what was not launched here.
  [[nodiscard]] std::vector<double> TakeLaunchSeconds();

  // Whether all that overwrote donated arrays since Run began at 0 lies where it was told to. The
  // executor clears it where it carries out such a launch itself.
  bool obeyed = false;

 private:
  enum class Kind : uint8_t { kOther, kLaunch, kView, kForget };
  struct Instruction {
    Kind kind = Kind::kOther;
    bool ready = true;
    int32_t index = 0;  // of the launch, the view's value, or the list of what is forgotten
    int32_t cell = 0;   // of a view
  };
  struct Cell {
    int64_t offset = 0;
    nanobind::object spec;
    nanobind::object array;  // may be invalid: none is kept
  };

  [[nodiscard]] nanobind::object Import(const Cell& cell, bool write);
  // Waits for the last launch, if that is outstanding.
  void Finish();
  // Slots, which their cells give up, then operands.
  std::vector<nanobind::object> ArgumentsOf(const Launch& launch, PyObject* values,
                                            const PoolMemory& memory);
  void RunLaunch(const Launch& launch, PyObject* values, size_t number, Interrupts* interrupts,
                 nanobind::handle misplaced);
  void CheckValue(int32_t value);

  nanobind::object pool_;
  nanobind::object load_;
  nanobind::tuple load_arguments_;
  nanobind::object reader_object_;
  ArgumentReader& reader_;
  nanobind::object wait_;
  bool ordered_;
  nanobind::object awaited_;  // a result of the last launch, invalid if there is none
  std::vector<Cell> cells_;
  std::vector<Instruction> instructions_;
  std::vector<Launch> launches_;
  std::vector<std::vector<std::pair<int32_t, int32_t>>> forgets_;
  std::vector<double> begun_;  // seconds, by instruction; empty: nobody asks
  int32_t value_count_ = 0;
};

void BindReplay(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_REPLAY_PLAN_REPLAY_H_
