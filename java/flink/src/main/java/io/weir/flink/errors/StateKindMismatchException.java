package io.weir.flink.errors;

import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.util.StateMigrationException;

/** A restored state was registered again under the same name as another kind of state. */
public class StateKindMismatchException extends StateMigrationException {

    private static final long serialVersionUID = 1L;

    private final String state;
    private final StateDescriptor.Type restored;
    private final StateDescriptor.Type registered;

    /**
     * @param state the state's name
     * @param restored the kind that the state has in the checkpoint, or had when it was registered
     *     first
     * @param registered the kind that it was registered as now
     */
    public StateKindMismatchException(
            String state, StateDescriptor.Type restored, StateDescriptor.Type registered) {
        super(
                "State '"
                        + state
                        + "' is of kind "
                        + restored
                        + " and cannot be registered as "
                        + registered
                        + "; give the new state another name.");
        this.state = state;
        this.restored = restored;
        this.registered = registered;
    }

    public String getState() {
        return state;
    }

    public StateDescriptor.Type getRestored() {
        return restored;
    }

    public StateDescriptor.Type getRegistered() {
        return registered;
    }
}
