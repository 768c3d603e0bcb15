package io.weir.flink.keyed;

import io.weir.flink.errors.StateIdCollisionException;

import org.apache.flink.util.StateMigrationException;

import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The states and queues of one backend by name, in the order in which they became known; no two
 * share an id.
 */
public final class RegisteredStates {

    private final Map<String, RegisteredState<?, ?>> byName = new LinkedHashMap<>();
    private final Map<String, RegisteredQueue<?>> queues = new LinkedHashMap<>();
    private final Map<Integer, String> names = new HashMap<>();

    public RegisteredState<?, ?> get(String name) {
        return byName.get(name);
    }

    public Collection<RegisteredState<?, ?>> all() {
        return Collections.unmodifiableCollection(byName.values());
    }

    /** Null if the engine holds no queue of this name. */
    public RegisteredQueue<?> queue(String name) {
        return queues.get(name);
    }

    /** The queues whose rows are in the engine. */
    public Collection<RegisteredQueue<?>> queues() {
        return Collections.unmodifiableCollection(queues.values());
    }

    /**
     * Adds a state, or replaces the one of its name.
     *
     * @throws StateIdCollisionException if a state or queue of another name has the same id
     * @throws StateMigrationException if a queue has the same name
     */
    public void put(RegisteredState<?, ?> state) throws StateMigrationException {
        if (queues.containsKey(state.name())) {
            throw ofBothKinds(state.name());
        }
        take(state.id(), state.name());
        byName.put(state.name(), state);
    }

    /**
     * Adds a queue, or replaces the one of its name.
     *
     * @throws StateIdCollisionException if a state or queue of another name has the same id
     * @throws StateMigrationException if a state has the same name
     */
    public void putQueue(RegisteredQueue<?> queue) throws StateMigrationException {
        if (byName.containsKey(queue.name())) {
            throw ofBothKinds(queue.name());
        }
        take(queue.id(), queue.name());
        queues.put(queue.name(), queue);
    }

    /** Forgets a queue, whose rows the engine must not have any more. */
    public void removeQueue(RegisteredQueue<?> queue) {
        queues.remove(queue.name());
        names.remove(queue.id());
    }

    private void take(int id, String name) throws StateIdCollisionException {
        String holder = names.putIfAbsent(id, name);
        if (holder != null && !holder.equals(name)) {
            throw new StateIdCollisionException(holder, name, id);
        }
    }

    private static StateMigrationException ofBothKinds(String name) {
        return new StateMigrationException(
                "'"
                        + name
                        + "' names a queue of timers and a keyed state of one operator; give the"
                        + " state another name.");
    }
}
