// What a session does for every operation: from operands to results without Python in between.
//
// Purpose: the eager front end runs an operation at a time, so what each one costs is what it
//   costs.
// Model: a Value is a handle of one result (value.h). Prepared says what a primitive on such
//   operands is; CompiledCall is a compiled form of it that was seen to write where it is told. Run
//   asks the engine, carries out what it answers (evictions, recomputations), launches, and keeps
//   the arrays; nearly every operation finds a shorter way that does the same
//   (session_fast_path.cc). Whatever is not of every day goes to the Python session that is passed
//   along: first launches, views, making room, errors (methods whose names begin with _on).
// Invariants: an array is held for a storage exactly while that is resident; when an operation
//   raises, the engine has been told how far its actions were carried out, and holds none of it.
// Thread rule: under the interpreter lock, one session at a time. Complexity: O(operands + results)
//   beyond the engine and the launch.
// Source: paper section 4 (the executor in the host framework).

#ifndef COOP_PYTHON_SESSION_SESSION_CORE_H_
#define COOP_PYTHON_SESSION_SESSION_CORE_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cc/core/planner/call_history.h"
#include "cc/python/engine/py_engine.h"
#include "cc/python/guard/call_guard.h"
#include "cc/python/memory/pool_memory.h"
#include "cc/python/memory/slot_cells.h"
#include "cc/python/session/operation_key.h"
#include "cc/python/session/session_log.h"
#include "cc/python/session/value.h"
#include "cc/python/support/small_vector.h"

namespace coop::python {

// A compiled function that obeys: call(*slots, *operands) -> results in `order`.
struct CompiledCall {
  nanobind::object call;
  ShortList<int32_t, 2> order;                               // result numbers as they are returned
  ShortList<std::pair<int32_t, nanobind::object>, 1> slots;  // (result, SlotSpec)
};

// Python's, JAX's literals, which derive from them, included: given as they are every time. Other
// operands that are no Values are recognised in Python.
[[nodiscard]] inline bool IsNumber(nanobind::handle x) {
  return PyFloat_Check(x.ptr()) || PyLong_Check(x.ptr());
}

// Whether this thread's launches go through Python: JAX looks for NaNs in what they make, and would
// do so by itself, also where something is made again.
inline thread_local bool launches_are_checked = false;

struct Prepared {
  nanobind::object kernel;
  nanobind::object out_avals;  // a tuple
  bool identity = false;       // the result is the first operand
  bool view = false;           // the result is a view of the first operand, if that is in the pool
  bool recomputable = false;
  double cost_seconds = 0;
  ShortList<OutputSpec, 1> outputs;
  ShortList<int32_t, 4> selection;  // which operands the kernel takes, in its order
  ShortList<int32_t, 2> out_keys;
  int64_t outside_bytes = 0;  // of its results outside the pool, as NoteOutside counts them

  // One compiled form: with a slot for each result, or with the result over an operand.
  struct Form {
    nanobind::object executable;
    const CompiledCall* call = nullptr;  // kept alive by `executable`
    int64_t workspace_bytes = 0;         // final once `call` is set
  };
  Form slots;
  // Operands, in the kernel's order, that its one result may overwrite; forms made at first use.
  std::vector<std::pair<int32_t, Form>> in_place;
};

class SessionCore : public PyEngine {
 public:
  // `load`: called with a capsule and `load_arguments`, imports it. `operand_key`: a hashable of an
  // operand that is no Value. `prepared`: the device's PreparedOperations. `fast`: whether launches
  // may bypass the session. `roomy`: whether nothing is expected to be evicted. `cells`: a
  // SlotCells of the pool. `max_recompute`: see EngineOptions.
  SessionCore(int64_t capacity_bytes, int64_t alignment_bytes, const Policy& policy,
              double expensive_seconds_per_byte, nanobind::object pool, nanobind::object cells,
              nanobind::object load, nanobind::tuple load_arguments, nanobind::object operand_key,
              nanobind::object prepared, bool fast, bool roomy, double max_recompute);

  // --- Running ---

  // As Run, after looking up what is prepared; None if that is not known, False if it is to be
  // taken apart.
  nanobind::object Apply(nanobind::handle session, nanobind::handle primitive,
                         nanobind::handle operands, nanobind::handle params,
                         nanobind::handle context);
  // A list of Values. `owner` is a Prepared.
  nanobind::object Run(nanobind::handle session, nanobind::handle owner, nanobind::handle operands);
  // Brings a storage back. The session's _on_no_space raises where there is no room.
  void Bring(nanobind::handle session, StorageId storage);
  // False where there is no room (see the engine's failure).
  bool ReserveRoom(nanobind::handle session, int64_t bytes);
  // Follows nothing any more, and holds nothing for it; false where nothing was followed.
  bool GiveUp();
  // Most likely nothing reads the storage again: once for each of its values, then its memory goes.
  void Hint(StorageId storage);
  // Releases storages whose Values are gone.
  void CollectDead();
  // Lets go of storages and recipes that the engine no longer has.
  void Drain();

  // --- Values and what is held ---

  [[nodiscard]] nanobind::object NewValue(StorageId storage, nanobind::handle aval, int32_t key);
  // Another value over the same storage.
  [[nodiscard]] nanobind::object Alias(StorageId storage, nanobind::handle aval, int32_t key);
  // `offset`: where the array lies in the pool; -1: outside, or it is asked when that is needed.
  void Put(StorageId storage, nanobind::object array, int32_t key, int64_t offset = -1);
  [[nodiscard]] bool Holds(StorageId storage) const;
  // The session's own: others get another array over the same memory, or a copy.
  [[nodiscard]] nanobind::object ArrayOf(nanobind::handle session, StorageId storage, int32_t key);
  void NoteOutside(StorageId storage, int64_t bytes);
  [[nodiscard]] bool IsOutside(StorageId storage) const;
  // What would make them again, by storage. For messages: it asks every recipe.
  [[nodiscard]] nanobind::dict Makers();
  // Of the array that is held, or of the one that an evicted storage comes back as; -1: not known.
  [[nodiscard]] int32_t KeyOf(StorageId storage) const;
  // (prepared, how often it was run again), in no order.
  [[nodiscard]] nanobind::list Recomputed() const;
  // The array is the caller's and is deleted when it is dropped.
  void Donate(StorageId storage) { donated_.insert(storage); }
  [[nodiscard]] bool IsDonated(StorageId storage) const { return donated_.count(storage) != 0; }
  void Drop(StorageId storage, SessionEvent why = SessionEvent::kDropped);
  void Clear();
  // Sources of the session's engine.
  StorageId AddForeign(int64_t offset, int64_t bytes, bool donated);
  StorageId AddOutside(int64_t bytes);
  // The storage is a result: it stays, and is never evicted again.
  void MakePermanent(StorageId storage);
  // What the session does is recorded, and what is recorded may be followed; before the first
  // source. The owner of the history keeps it alive.
  void Record(History* history, bool follow);
  // What the session does is noted in it from now on; before the first source. Its owner keeps it
  // alive until Clear.
  void Log(SessionLog* log) { log_ = log; }
  // `make`: called with what is run again and 0, or with None and the bytes of what is evicted;
  // returns a context manager to be in meanwhile.
  void Annotate(nanobind::object make) { annotate_ = std::move(make); }
  // As Put, for a source that the call reads.
  void PutSource(StorageId storage, nanobind::object array, int32_t key, int64_t offset);

  int64_t outside_bytes = 0;
  int64_t peak_outside_bytes = 0;
  int64_t workspace_bytes = 0;  // kept free now
  int64_t reserved_bytes = 0;   // of the pool, for what is outside it and workspace
  double compute_seconds = 0;   // of launches that bypassed the session
  double recompute_seconds = 0;
  // Whether results of treasures are treasured, see Engine::Treasure.
  bool treasures = false;
  // Checked before each operation until a donated array is gone, which they are told. Their owner
  // outlives the session.
  Interrupts* interrupts = nullptr;

 private:
  // An operand in a recipe: a storage seen as a shape and dtype, or a scalar given as it is.
  struct Ref {
    StorageId storage = kNone;
    int32_t key = -1;
    nanobind::object scalar;
  };
  struct Recipe {
    Prepared* prepared = nullptr;  // kept alive by `owner`
    nanobind::object owner;
    Prepared::Form* overwriting = nullptr;  // used where the engine places the result so
    std::vector<Ref> refs;
    std::vector<StorageId> outputs;
  };
  struct Held {
    nanobind::object array;
    int32_t key = -1;
    int32_t hints = 0;
    int64_t outside_bytes = -1;  // -1: in the pool
    int64_t offset = -1;         // in the pool, where that is known
    bool viewed = false;         // whether there are views of it
    int64_t place = -1;          // where the array may be used as a slot again; -1: it may not
  };
  // Which storage an array that a launch returns is of.
  struct Landing {
    StorageId storage = kNone;  // kNone: of none
    int32_t key = -1;
    int64_t offset = -1;
  };
  // What is held, as another shape or dtype.
  struct View {
    int32_t key = -1;
    nanobind::object array;
    int64_t place = -1;  // as in Held
  };

  // The result where nothing has to run, invalid where something has.
  nanobind::object WithoutRunning(const Prepared& prepared, nanobind::handle first);
  // Fills refs_ and inputs_; values made for it must live until the engine has the operation.
  std::vector<nanobind::object> ReadOperands(nanobind::handle session, const Prepared& prepared,
                                             nanobind::handle operands);
  // The short way (session_fast_path.cc): as Run. Invalid, and nothing done, for what has to go the
  // general way.
  nanobind::object RunDirectly(nanobind::handle session, nanobind::handle owner,
                               nanobind::handle operands);
  // Fills inputs_, pointers_ after the places of the slots, and refs_, as the general way would;
  // false where it has to be gone.
  bool ReadDirectly(nanobind::handle session, const Prepared& prepared, nanobind::handle operands);
  // Of pointers_, which begin with empty places for the slots: the one result.
  nanobind::object LaunchDirectly(const Prepared& prepared, int64_t offset);
  // The form that overwrites an operand of which nothing but `operands`, a list, holds the value,
  // so that it dies here; null for none.
  Prepared::Form* Overwriting(nanobind::handle session, nanobind::handle owner,
                              nanobind::handle operands);
  // The operation took the memory of an operand, whose value is gone with it.
  void Consume(nanobind::handle operands, StorageId storage);
  // What was held of a storage is now memory of another, at the same offset.
  void Overwrite(StorageId storage, int64_t offset);
  // `incoming`: bytes of results outside the pool, which are there before they are counted.
  void MakeRoom(nanobind::handle session, Prepared::Form& form, int64_t incoming);
  // What the engine says to a request; without what was learned if that has no room.
  [[nodiscard]] bool Ask(const auto& request) {
    return request() || (GiveUp() && request()) || (GiveBackRoom() && request());
  }
  void LogReserved();
  // The launch that goes on makes a storage: its result of that number.
  void LogBegin(StorageId storage, const Prepared& prepared, size_t result, int64_t offset);
  // Room is reserved in steps: gives back what is not needed now; false where that is nothing.
  bool GiveBackRoom();
  void Release(StorageId storage);
  // Releases what the history held for longer than the front end did.
  void ReleaseDue();
  // Whether the operation that is submitted reads a treasure.
  [[nodiscard]] bool ComesOfTreasure() const;
  // A Value for each output of the operation that was submitted.
  void AppendResults(const Prepared& prepared, nanobind::list* results);
  // Adds the operation and has the engine plan it; raises where there is no room.
  OperationId Submit(nanobind::handle session, nanobind::handle owner);
  // Of refs_ and outputs_.
  void KeepRecipe(nanobind::handle owner, OperationId operation);
  void DropRecipe(OperationId operation);
  // Carries out the last transaction; what was not is taken back if something raises.
  void CarryOut(nanobind::handle session);
  void Launch(nanobind::handle session, Recipe& recipe, const Placement* placements,
              bool recompute);
  // Of arguments_, which begin with empty places for the slots, and are emptied.
  nanobind::object LaunchFast(const Prepared& prepared, const CompiledCall& call,
                              const Placement* placements, bool recompute);
  // Copies what is held of a storage to another place.
  void Move(nanobind::handle session, StorageId storage, int64_t offset);
  // An array to be donated to what writes there.
  nanobind::object SlotAt(int64_t offset, int32_t key, nanobind::handle spec);
  // An array in the shape and dtype of `key` over the memory of another.
  View MakeView(nanobind::handle session, StorageId storage, int32_t key);
  // An array over a place in the pool; `write`: nobody may hold that memory.
  nanobind::object Import(int64_t offset, nanobind::handle spec, bool write);
  // The session is done with an array of its own at a place in the pool (-1: it may be anybody's).
  void Keep(nanobind::object* array, int32_t key, int64_t place);
  void DropViews(StorageId storage);
  // A donated array is gone: the call has to finish.
  void NoteConsumed();
  Held& HeldOf(StorageId storage);

  nanobind::object pool_;
  nanobind::object cells_owner_;
  SlotCells& cells_;
  nanobind::object load_;
  nanobind::tuple load_arguments_;
  nanobind::object operand_key_;
  nanobind::object prepared_owner_;
  PreparedOperations& prepared_;
  nanobind::object ndarray_;  // NumPy's type
  bool fast_;
  bool direct_;  // whether operations may go the short way
  bool roomy_;   // whether places are as good as each other
  History* history_ = nullptr;
  SessionLog* log_ = nullptr;  // null: nobody records
  std::shared_ptr<DeadList> dead_;
  std::vector<Held> held_;
  std::vector<int32_t> made_keys_;  // by storage: of the result as its operation makes it
  std::vector<std::unique_ptr<Recipe>> recipes_;
  std::vector<std::unique_ptr<Recipe>> spare_recipes_;  // empty, but for what their lists take
  std::unordered_map<StorageId, std::vector<View>> views_;
  std::unordered_set<StorageId> donated_;
  nanobind::object annotate_;  // invalid: nobody asks
  // What was run again; their owners are the keys.
  std::unordered_map<PyObject*, std::pair<nanobind::object, int64_t>> recomputed_;
  int64_t incoming_bytes_ = 0;  // of the operation that is asked for: of its results outside
  // Reused by each Run; nothing that Run calls runs another operation of this session.
  std::vector<Ref> refs_;
  std::vector<StorageId> inputs_;
  std::vector<StorageId> outputs_;
  std::vector<OutputSpec> specs_;
  std::vector<Action> actions_;
  std::vector<Placement> placements_;
  std::vector<Landing> landings_;
  std::vector<nanobind::object> arguments_;
  std::vector<PyObject*> pointers_;
  DeadList collected_;
  std::vector<StorageId> gone_storages_;
  std::vector<OperationId> gone_operations_;
};

void BindSession(nanobind::module_& module);

}  // namespace coop::python

#endif  // COOP_PYTHON_SESSION_SESSION_CORE_H_
